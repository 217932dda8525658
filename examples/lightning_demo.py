"""Train a small model with Lightning and DeMo, on any number of ranks.

    torchrun --nproc-per-node 2 examples/lightning_demo.py

It needs `pip install lightning`.

Lightning's strategy `ddp` wraps the module in DistributedDataParallel (DDP), which would average the gradients over the
ranks. DeMo needs each rank's own gradients, so the strategy `LocalGradients` runs every forward pass under DDP's
`no_sync`. The backward pass then exchanges nothing. DDP's communication hooks are no way to do it, because Lightning
ignores them on a CPU. DDP still does one useful thing: it makes the parameters of all ranks equal at the start.

The trainer must not clip gradients, because DeMo has its own bound for a step. It saves the optimizer of the first rank
only; to resume, let each rank save its own `optimizer.state_dict()`.
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
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from thinwire_node import DeMo

CONTEXT = 64


class LocalGradients(DDPStrategy):
    """DDP in which each rank keeps its own gradients."""

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        with self.block_backward_sync():
            return super().training_step(*arguments, **named)


class ByteModel(LightningModule):
    """Predicts the next byte, with a small recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 128)
        self.recurrent = torch.nn.GRU(128, 256, batch_first=True)
        self.head = torch.nn.Linear(256, 256)

    def configure_optimizers(self) -> DeMo:
        self.demo = DeMo(self.parameters(), lr=2e-3, compression_decay=0.99, precondition="adam", magnitude="clipped")
        return self.demo

    def training_step(self, batch: tuple[Tensor], index: int) -> Tensor:
        (tokens,) = batch
        hidden, _ = self.recurrent(self.embedding(tokens[:, :-1]))
        return cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        if self.global_rank == 0:
            loss, sent = outputs["loss"].item(), self.demo.bytes_sent
            print(f"step {self.global_step:4}  loss {loss:.3f}  sent {sent:,} bytes in all", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    seed_everything(1, verbose=False)
    model = ByteModel()
    trainer = Trainer(
        max_steps=steps,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy=LocalGradients(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(samples(), batch_size=8, shuffle=True))
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
