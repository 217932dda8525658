"""Train a small model with Lightning and DeMo, on any number of ranks.

    torchrun --nproc-per-node 2 examples/lightning_demo.py
    torchrun --nproc-per-node 2 examples/lightning_demo.py --resume     continues from the newest checkpoint

It needs `pip install lightning`.

Lightning's strategy `ddp` wraps the module in DistributedDataParallel (DDP), which would average the gradients over the
ranks. DeMo needs each rank's own gradients, so the strategy `LocalGradients` runs every forward pass under DDP's
`no_sync`. The backward pass then exchanges nothing. DDP's communication hooks are no way to do it, because Lightning
ignores them on a CPU. DDP still does one useful thing: it makes the parameters of all ranks equal at the start.

The trainer must not clip gradients, because DeMo has its own bound for a step. Its checkpoints hold the optimizer of
the first rank only, and each rank has a momentum of its own. So the module puts those of all ranks into them, and a
resumed run has the same bits as an uninterrupted one.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Sampler, TensorDataset

from thinwire import DeMo

BATCH, CONTEXT = 8, 64


class LocalGradients(DDPStrategy):
    """DDP in which each rank keeps its own gradients."""

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        with self.block_backward_sync():
            return super().training_step(*arguments, **named)


class EndlessOrder(Sampler[int]):
    """The samples of a rank, pass after pass, each in an order of its own; the ranks take turns. first: how many
    samples this rank had before."""

    def __init__(self, count: int, first: int, ranks: int, rank: int) -> None:
        self._count, self._ranks, self._next = count, ranks, first * ranks + rank

    def __iter__(self) -> Iterator[int]:
        while True:
            number, start = divmod(self._next, self._count)
            order = torch.randperm(self._count, generator=torch.Generator().manual_seed(1 + number)).tolist()
            for place in range(start, self._count, self._ranks):
                self._next += self._ranks
                yield order[place]


class ByteModel(LightningModule):
    """Predicts the next byte, with a small recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 128)
        self.recurrent = torch.nn.GRU(128, 256, batch_first=True)
        self.head = torch.nn.Linear(256, 256)
        self.samples = samples()

    def configure_optimizers(self) -> DeMo:
        self.demo = DeMo(self.parameters(), lr=2e-3, compression_decay=0.99, precondition="adam", magnitude="clipped")
        return self.demo

    def training_step(self, batch: tuple[Tensor], index: int) -> Tensor:
        (tokens,) = batch
        hidden, _ = self.recurrent(self.embedding(tokens[:, :-1]))
        return cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Lightning does not go on inside of an epoch by itself, so the order begins at the step that a checkpoint has
        reached."""
        order = EndlessOrder(len(self.samples), self.global_step * BATCH, self.trainer.world_size, self.global_rank)
        return DataLoader(self.samples, BATCH, sampler=order)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["optimizers"] = [None] * self.trainer.world_size
        dist.all_gather_object(checkpoint["optimizers"], self.demo.state_dict())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["optimizer_states"] = [checkpoint["optimizers"][self.global_rank]]

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        if self.global_rank == 0:
            loss, sent = outputs["loss"].item(), self.demo.bytes_sent
            print(f"step {self.global_step:4}  loss {loss:.3f}  sent {sent:,} bytes in all", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="runs/lightning_demo")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    seed_everything(1, verbose=False)
    model = ByteModel()
    trainer = Trainer(
        max_steps=given.steps,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy=LocalGradients(),
        logger=False,
        callbacks=[ModelCheckpoint(given.out, every_n_train_steps=given.save_every, save_last=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,  # the order divides the samples itself
    )
    trainer.fit(model, ckpt_path="last" if given.resume else None)
    print(f"rank {trainer.global_rank}: fingerprint {model.demo.fingerprint():016x}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold tensors: see docs/optimizer.md


def samples() -> TensorDataset:
    """Samples of CONTEXT + 1 bytes from Python's standard library, int64."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    count = len(text) // (CONTEXT + 1)
    return TensorDataset(text[: count * (CONTEXT + 1)].view(count, CONTEXT + 1))


if __name__ == "__main__":
    main()
