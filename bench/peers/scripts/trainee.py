"""The parts that all scripts share: the model, its batches and rate, and the files that the benchmark reads.

A script computes the gradient of a batch with `Trainee.backward`, steps with its own optimizer, and then calls
`Trainee.done`, which appends a line to the node's log and saves the parameters from time to time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bench.convergence.text import stdlib
from bench.wide_area.line import DEVICE
from bench.wide_area.loss_module import LossModule
from bench.wide_area.workload import MICRO_BATCH, PRESET, SAMPLES, SEED, THREADS
from thinwire_proto.data.corpus import windows
from thinwire_proto.data.order import sample_at
from thinwire_proto.models import BYTE_PRESETS

ADAMW_RATE = 1.5e-3
"""Of 1, 1.5, 2 and 3 thousandths, the best after 280,000 tokens in one process with a batch of four nodes
(docs/log/wide-area.md)."""
MUON_RATE, MUON_ADAMW_RATE = 2e-2, 0.5
"""Likewise, of 1, 2 and 3 hundredths for matrices; and a factor for all others, better than 0.2."""
BETAS = (0.9, 0.99)
WARMUP_BATCHES = 4
"""Afterwards the rate is constant, so that it is the same for fast and slow systems."""
SAVE_EVERY_S = 15.0
AGAIN_FROM = 1 << 20
"""The first batch of a node that was started again, so that it does not repeat its samples."""


class Trainee:
    """One node. loss: the model with its loss as the output, which a script may wrap."""

    def __init__(self, words: Sequence[str] | None = None, batch: int = 0) -> None:
        """words: the options, if not those of the command. batch: the number of the first one."""
        options = _options(words)
        self.rank, self.ranks = options.rank, len(options.addresses)
        self.addresses: list[str] = options.addresses
        self.coordinator: str = options.coordinator
        self.address = self.addresses[self.rank]
        self.join: str = options.join
        self.loss = LossModule()
        self._folder: Path = options.folder
        self._batch = batch + (AGAIN_FROM if options.again else 0)
        self._samples = windows(stdlib().train, BYTE_PRESETS[PRESET].context)
        self._saved_s = -SAVE_EVERY_S
        torch.set_num_threads(THREADS)
        os.environ["GLOO_SOCKET_IFNAME"] = DEVICE

    def adamw(self, parameters: list[Tensor] | None = None) -> torch.optim.AdamW:
        """The optimizer of all scripts that need one."""
        return torch.optim.AdamW(parameters or self.loss.parameters(), lr=ADAMW_RATE, betas=BETAS)

    @staticmethod
    def warmup(optimizer: Optimizer) -> LambdaLR:
        """The schedule of all scripts; call its `step` once a batch."""
        return LambdaLR(optimizer, lambda batch: min(1.0, (batch + 1) / WARMUP_BATCHES))

    def backward(self, module: nn.Module | None = None, accumulate: Callable[[bool], object] | None = None) -> None:
        """Add the mean gradient of a batch to the parameters' `grad`. module: a wrapper, whose `no_sync`, if it has
        one, holds for all micro-batches but the last. accumulate: what a wrapper has in place of `no_sync`."""
        wrapped = module or self.loss
        first = (self._batch * self.ranks + self.rank) * SAMPLES
        at = [sample_at(first + number, SEED, len(self._samples)) for number in range(SAMPLES)]
        for start in range(0, SAMPLES, MICRO_BATCH):
            is_last = start + MICRO_BATCH == SAMPLES
            if accumulate:
                accumulate(not is_last)
            with nullcontext() if is_last else getattr(wrapped, "no_sync", nullcontext)():
                tokens = torch.from_numpy(self._samples[at[start : start + MICRO_BATCH]].astype(np.int64))
                (wrapped(tokens) * (MICRO_BATCH / SAMPLES)).backward()
        self._batch += 1

    def done(self, version: int | None = None) -> None:
        """Report a finished batch. version: the step whose parameters the system promises to be equal on all nodes, if
        this node has just reached it."""
        self._report(SAMPLES * BYTE_PRESETS[PRESET].context, version)

    def hold(self, version: int) -> None:
        """Report the parameters of a version between two batches."""
        self._report(0, version)

    def _report(self, tokens: int, version: int | None) -> None:
        at_s = time.monotonic()
        digest = self._digest() if version is not None else ""
        line = {"at_s": at_s, "node": self.rank, "tokens": tokens, "version": version, "digest": digest}
        with (self._folder / f"{self.rank}.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        if at_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = at_s
            save(dict(self.loss.decoder.named_parameters()), self._folder, self.rank, at_s)

    def _digest(self) -> str:
        found = hashlib.sha256()
        for parameter in self.loss.parameters():
            found.update(parameter.detach().numpy().tobytes())
        return found.hexdigest()


def save(parameters: dict[str, Tensor], folder: Path, rank: int, at_s: float) -> None:
    """Hand parameters over to the evaluator. at_s: on the machine's monotonic clock."""
    path = folder / f"{rank}-{at_s:.3f}.safetensors"
    part = path.with_suffix(".part")
    save_file({name: tensor.detach().clone() for name, tensor in parameters.items()}, part)
    part.rename(path)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--addresses", nargs="+", required=True, help="of all nodes, by rank")
    parser.add_argument("--coordinator", required=True, help="address of the host that does not train")
    parser.add_argument("--folder", type=Path, required=True, help="for logs and parameters")
    parser.add_argument("--join", default="", help="what the helper printed for nodes that join")
    parser.add_argument("--again", action="store_true", help="this node has been killed before")
    return parser.parse_args(words)
