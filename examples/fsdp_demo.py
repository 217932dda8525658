"""Train a small byte model on several sites: FSDP2 shards it inside each site, and DeMo exchanges between the sites.

    torchrun --nproc-per-node 4 examples/fsdp_demo.py --sites 2               two sites of two ranks
    torchrun --nproc-per-node 6 examples/fsdp_demo.py --sites 2 --resume      goes on with three ranks each

A site is a machine, or several with fast links; only what DeMo sends leaves it. Uses CUDA devices with NCCL if there
are any, otherwise the CPU with gloo. The text is Python's standard library.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from thinwire import DeMo
from thinwire_proto.models import BYTE_PRESETS, build_decoder

TEXT_BYTES_MAX = 4_000_000
GRADIENT_NORM_MAX = 1.0


class Loss(nn.Module):
    """The model with its loss as the output, because FSDP2 gathers parameters in `forward`."""

    def __init__(self, preset: str, seed: int) -> None:
        super().__init__()
        self.decoder = build_decoder(BYTE_PRESETS[preset])
        self.decoder.initialise(torch.Generator().manual_seed(seed))  # equal on all ranks

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder.loss(tokens)


def main() -> None:
    arguments = _arguments()
    device = _join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks % arguments.sites:
        sys.exit(f"{ranks} ranks cannot be {arguments.sites} sites of the same size")
    mesh = init_device_mesh(device.type, (arguments.sites, ranks // arguments.sites), mesh_dim_names=("site", "rank"))

    model = Loss(arguments.preset, arguments.seed).to(device)
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if device.type == "cuda" else MixedPrecisionPolicy()
    for block in model.decoder.blocks:
        fully_shard(block, mesh=mesh["rank"], mp_policy=precision)
    fully_shard(model, mesh=mesh["rank"], mp_policy=precision)  # not over the whole mesh: that would average gradients
    optimizer = DeMo(
        model.parameters(),
        lr=arguments.lr,
        compression_decay=0.99,
        magnitude="clipped",
        precondition="adam",
        process_group=mesh.get_group("site"),
    )

    site = f"optimizer of site {mesh.get_local_rank('site')}"
    done = _resume(arguments.checkpoints, model, optimizer, site) if arguments.resume else 0
    text = _text()
    for step in range(done, arguments.steps):
        sent = optimizer.bytes_sent
        for micro in range(arguments.accumulate):
            assert isinstance(model, FSDPModule)
            model.set_requires_gradient_sync(micro == arguments.accumulate - 1)
            seed = (arguments.seed, step * arguments.accumulate + micro, rank)
            tokens = _samples(text, BYTE_PRESETS[arguments.preset].context, arguments.samples, seed).to(device)
            loss = model(tokens) / arguments.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            last = loss.item() * arguments.accumulate
            print(f"step {step + 1:4}  loss {last:.3f}  sent {optimizer.bytes_sent - sent:,} bytes", flush=True)
        if (step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps:
            _save(arguments.checkpoints / f"step-{step + 1:08}", step + 1, model, optimizer, site)

    fingerprint = f"{optimizer.fingerprint():016x}"  # of the whole parameters of a site
    all_sites: list[Any] = [None] * ranks
    dist.all_gather_object(all_sites, fingerprint)
    equal = len(set(all_sites)) == 1
    if rank == 0:
        found = "equal bit for bit" if equal else "NOT equal"
        print(f"the parameters of all {arguments.sites} sites are {found}; their fingerprint is {fingerprint}")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0 if equal else 1)  # without finalizing Python; torchrun_demo.py says why


def _join() -> torch.device:
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def _text() -> Tensor:
    """The training text, uint8 [n]."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[:TEXT_BYTES_MAX]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _samples(text: Tensor, context: int, count: int, seed: tuple[int, int, int]) -> Tensor:
    """Samples int64 [count, context + 1], drawn by run, micro-batch and rank."""
    run, number, rank = seed
    generator = torch.Generator().manual_seed((run << 48) + (number << 16) + rank)
    starts = torch.randint(len(text) - context - 1, (count, 1), generator=generator)
    return text[starts + torch.arange(context + 1)].long()


def _state(model: nn.Module, optimizer: DeMo, site: str) -> dict[str, Any]:
    """All sites have the same model. Each has learned something else, which needs a name of its own."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, site: of_optimizer}


def _save(folder: Path, step: int, model: nn.Module, optimizer: DeMo, site: str) -> None:
    save(_state(model, optimizer, site) | {"step": step}, checkpoint_id=folder)


def _resume(folder: Path, model: nn.Module, optimizer: DeMo, site: str) -> int:
    """Load the newest whole checkpoint, whatever the number of ranks that saved it, and return its step."""
    whole = [path.parent for path in sorted(folder.glob("step-*/.metadata"))]  # which is written last
    if not whole:
        sys.exit(f"there is no checkpoint in {folder}; start without --resume")
    state = _state(model, optimizer, site) | {"step": 0}
    load(state, checkpoint_id=whole[-1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state[site])
    return int(state["step"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sites", type=int, default=2, help="all of the same size; ranks of a site follow on each other"
    )
    parser.add_argument("--preset", choices=BYTE_PRESETS, default="byte-1m", help="model size")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=8, help="samples for each rank and micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/fsdp_demo"))
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
