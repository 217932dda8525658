"""Train a small model with Hugging Face's Accelerate and DeMo, on any number of ranks.

    torchrun --nproc-per-node 2 examples/accelerate_demo.py

It needs `pip install accelerate`. On a machine with several GPUs, `accelerate launch --num-processes 2` does the same;
on a CPU it starts a single process.

`prepare` wraps a model in DistributedDataParallel (DDP), which would average the gradients over the ranks. DeMo needs
each rank's own gradients, so this script gives `prepare` only the optimizer and the data, and moves the model itself.
Without DDP, the seed must make the ranks' parameters equal at the start. DeMo's first step checks that they are.

A scheduler stays outside of `prepare`, too, or else Accelerate would step it once for each rank. With `accumulate`, the
optimizer steps in some iterations alone, so step the scheduler only `if accelerator.sync_gradients`. If you need the
model prepared, for example for mixed precision, run each forward and backward pass under `accelerator.no_sync(model)`.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from itertools import chain, islice, repeat
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from thinwire import DeMo

CONTEXT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(1)  # equal parameters on all ranks
    model = byte_model().to(accelerator.device)
    demo = DeMo(model.parameters(), lr=2e-3, compression_decay=0.99, precondition="adam", magnitude="clipped")
    scheduler = torch.optim.lr_scheduler.LinearLR(demo, 0.2, 1.0, total_iters=5)
    optimizer, loader = accelerator.prepare(demo, DataLoader(samples(), batch_size=8, shuffle=True))
    passes = chain.from_iterable(repeat(loader))  # each rank gets its own part of the samples, in each pass
    for step, (batch,) in enumerate(islice(passes, steps)):
        with accelerator.autocast():
            logits = model(batch[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(
            f"step {step + 1:4}  loss {loss.item():.3f}  sent {demo.bytes_sent:,} bytes in all", flush=True
        )
    print(f"rank {accelerator.process_index}: fingerprint {demo.fingerprint():016x}", flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold tensors: see docs/optimizer.md


def byte_model() -> torch.nn.Module:
    """Logits [n, length, 256] from bytes [n, length], by a small recurrent network."""

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(256, 128)
            self.recurrent = torch.nn.GRU(128, 256, batch_first=True)
            self.head = torch.nn.Linear(256, 256)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            hidden, _ = self.recurrent(self.embedding(tokens))
            logits: torch.Tensor = self.head(hidden)
            return logits

    return Recurrent()


def samples() -> TensorDataset:
    """Samples of CONTEXT + 1 bytes from Python's standard library, int64."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    count = len(text) // (CONTEXT + 1)
    return TensorDataset(text[: count * (CONTEXT + 1)].view(count, CONTEXT + 1))


if __name__ == "__main__":
    main()
