"""Train torchtitan's debug model on several sites: torchtitan shards it inside each, and DeMo exchanges between them.

    pip install torchtitan==0.3.0 thinwire                                    in an environment of its own
    torchrun --nproc-per-node 4 examples/torchtitan_demo.py --sites 2        two sites of two ranks

Nothing of torchtitan is changed. Its replicas (`dp_replicate`) are the sites. `Sites` keeps FSDP from averaging
gradients over them, and `DeMoContainer` is an optimizer of its config. Model, sharding, activation checkpointing,
clipping, schedule and metrics are torchtitan's. Its checkpoints are off: they would keep the momentum of one site. Uses
CUDA devices with NCCL if there are any, otherwise the CPU with gloo. The text is Python's standard library, as bytes.
"""

# mypy: disable-error-code="misc, no-any-return"
from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import IterableDataset
from torchtitan.tools import utils

if not hasattr(dist, "set_timeout"):  # torch 2.13 has it under another name
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout  # type: ignore[attr-defined]
if not torch.cuda.is_available():  # torchtitan asks a device's module for what only a card has
    calls = ("set_device", "synchronize", "reset_peak_memory_stats", "empty_cache")
    no_card: dict[str, Any] = dict.fromkeys(calls, lambda *_: None)
    no_card |= {"device_count": lambda: 1, "current_device": lambda: 0, "get_device_name": lambda _: "CPU"}
    no_card |= {"memory_stats": lambda _: {}, "get_device_properties": lambda _: SimpleNamespace(total_memory=1 << 30)}
    utils.device_type, utils.device_module = "cpu", SimpleNamespace(**no_card)

from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.distributed import ParallelDims
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from thinwire import DeMo

TEXT_BYTES_MAX = 4_000_000


class Sites(ParallelDims):
    """The dimensions of a run, where FSDP shards over the ranks of a site and never reduces over the sites."""

    def get_mesh(self, dims: str | list[str]) -> DeviceMesh:
        return super().get_mesh("fsdp" if dims == ["dp_replicate", "fsdp"] else dims)

    @property
    def between_sites(self) -> dist.ProcessGroup:
        """The ranks that hold the same shards."""
        return self.get_mesh("dp_replicate").get_group()


class DeMoContainer(OptimizersContainer):
    """torchtitan's container with DeMo in it."""

    between_sites: dist.ProcessGroup | None = None

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _build_impl_kwargs(config: OptimizersContainer.Config) -> dict[str, Any]:
        return {}

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., DeMo]:
        return partial(DeMo, process_group=DeMoContainer.between_sites)


class SiteTrainer(Trainer):
    """torchtitan's trainer on sites."""

    def init_distributed(self) -> ParallelDims:
        found = super().init_distributed()
        sites = Sites.from_config(self.config.parallelism, found.world_size)
        DeMoContainer.between_sites = sites.between_sites
        return sites


class Bytes(BaseTokenizer):
    """A tokenizer whose tokens are bytes."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def get_vocab_size(self) -> int:
        return 256


class Windows(IterableDataset[Any]):
    """Windows of the text, drawn by each rank for itself."""

    def __init__(self, rank: int, length: int) -> None:
        self._generator = torch.Generator().manual_seed(rank)
        self._length = length
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)[:TEXT_BYTES_MAX]
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            start = int(torch.randint(len(self._text) - self._length - 1, (1,), generator=self._generator))
            window = self._text[start : start + self._length + 1].long()
            yield {"input": window[:-1]}, window[1:]


class WindowLoader(ParallelAwareDataloader):
    """torchtitan's loader of these windows."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        super().__init__(Windows(dp_rank, seq_len), dp_rank, dp_world_size, batch_size=local_batch_size)


def main() -> None:
    arguments = _arguments()
    init_logger()
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks % arguments.sites:
        sys.exit(f"{ranks} ranks cannot be {arguments.sites} sites of the same size")
    trainer = SiteTrainer(_config(arguments, ranks // arguments.sites))
    if trainer.device.type == "cpu":
        for module in trainer.model_parts[0].modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it adds
    trainer.train()
    (demo,) = trainer.optimizers.optimizers
    assert isinstance(demo, DeMo)
    fingerprint = f"{demo.fingerprint():016x}"  # of the whole parameters of a site
    all_sites: list[Any] = [None] * ranks
    dist.all_gather_object(all_sites, fingerprint)
    equal = len(set(all_sites)) == 1
    if dist.get_rank() == 0:
        found = "equal bit for bit" if equal else "NOT equal"
        print(f"the parameters of all {arguments.sites} sites are {found}; their fingerprint is {fingerprint}")
        print(f"each rank has sent {demo.bytes_sent // arguments.steps:,} bytes a step to the other sites")
    dist.barrier()
    trainer.close()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0 if equal else 1)  # without finalizing Python; torchrun_demo.py says why


def _config(arguments: argparse.Namespace, ranks_of_site: int) -> Any:
    of_demo = {"compression_decay": 0.99, "magnitude": "clipped", "precondition": "adam", "lr": arguments.lr}
    config = llama3_debugmodel()
    assert config.model_spec is not None
    for _, _, parent, attribute in config.model_spec.model.traverse(FlexAttention.Config):
        setattr(parent, attribute, ScaledDotProductAttention.Config())  # windows have no positions of documents
    config.loss = CrossEntropyLoss.Config()
    config.tokenizer, config.dataloader = Bytes.Config(), WindowLoader.Config()
    config.optimizer = DeMoContainer.Config(
        param_groups=[ParamGroupConfig(pattern=".*", optimizer_name="DeMo", optimizer_kwargs=of_demo)]
    )
    config.parallelism.spmd_backend = "partial_dtensor"
    config.parallelism.data_parallel_replicate_degree = arguments.sites
    config.parallelism.data_parallel_shard_degree = ranks_of_site
    config.training.steps, config.training.disable_cuda_graphs = arguments.steps, True
    config.training.local_batch_size, config.training.seq_len = arguments.samples, arguments.context
    config.validator.enable = config.checkpoint.enable = False
    return config


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=2, help="all of the same size")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4, help="samples for each rank")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
