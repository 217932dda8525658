"""Held-out loss, and what the model writes, on a copy of the parameters, so that the replica need not stand still."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import torch

from thinwire_proto.contract import Contract
from thinwire_proto.data.corpus import Corpus, windows
from thinwire_proto.exact.replica import Replica
from thinwire_proto.models import build
from thinwire_proto.models.decoder import Decoder

WINDOWS_MAX = 64
BATCH = 8
SAMPLE_BYTES = 120
SAMPLE_PIECE = 8
"""Bytes of a sample that are written before it is asked whether to go on."""
SAMPLE_TEMPERATURE = 0.8
SAMPLE_SHARE = 1 / 200
"""Of all the processor time that the process takes, samples take no more; the first and the last one come on top."""


class HeldOut:
    """Up to 64 windows, evenly spread over the text that nobody trains on."""

    def __init__(self, contract: Contract, corpus: Corpus) -> None:
        every = windows(corpus.held_out, contract.model.context)
        chosen = np.linspace(0, len(every) - 1, min(WINDOWS_MAX, len(every)), dtype=np.int64)
        self._windows = torch.from_numpy(every[chosen].astype(np.int64))  # [windows, context + 1]
        self._model = build(contract.model)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Give up the measurement that runs, and any later one. May be called from any thread."""
        self._stopped.set()

    @torch.no_grad()
    def sample(self, prompt: str, seed: int) -> tuple[str | None, float]:
        """What the model measured last writes after a prompt, None if it was stopped; and the seconds of processor time
        that this took."""
        began = time.thread_time()
        tokens = torch.tensor(list(prompt.encode()), dtype=torch.int64)
        length, generator = len(tokens), torch.Generator().manual_seed(seed)
        while len(tokens) < length + SAMPLE_BYTES:
            if self._stopped.is_set():
                return None, time.thread_time() - began
            drawn = self._model.generate(tokens, SAMPLE_PIECE, SAMPLE_TEMPERATURE, generator)
            tokens = torch.cat([tokens, drawn])
        return _text(tokens[length:]), time.thread_time() - began

    @torch.no_grad()
    def measure(self, replica: Replica) -> float:
        """Mean loss, nats a token; not a number if it was stopped. The replica must stand still: give a copy."""
        fill(self._model, replica)
        total = 0.0
        for start in range(0, len(self._windows), BATCH):
            if self._stopped.is_set():
                return math.nan
            total += float(self._model.loss(self._windows[start : start + BATCH], reduction="sum"))
        return total / (self._windows.shape[0] * (self._windows.shape[1] - 1))


@torch.no_grad()
def fill(model: Decoder, replica: Replica) -> None:
    for name, tensor in model.named_parameters():
        tensor.copy_(replica.tensors[name])


def sample(replica: Replica, prompt: str, length: int, temperature: float, seed: int) -> str:
    """What the model writes after a prompt: `length` bytes, drawn at `temperature`, as text."""
    model = build(replica.contract.model)
    fill(model, replica)
    tokens = torch.tensor(list(prompt.encode() or b"\n"), dtype=torch.int64)
    drawn = model.generate(tokens, length, temperature, torch.Generator().manual_seed(seed))
    return _text(drawn)


def _text(tokens: torch.Tensor) -> str:
    """Tokens [length] of a model over bytes."""
    return bytes(token for token in tokens.tolist() if token < 256).decode(errors="replace")


class SampleBudget:
    """When the next sample may be made: when it will have been earned, if it costs what the newest did."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._newest_s = 0.0

    def due(self, process_s: float, *, last: bool) -> bool:
        """process_s: processor time that the process has taken. last: there is nothing to come."""
        return last or self._spent_s + self._newest_s <= SAMPLE_SHARE * process_s

    def took(self, seconds: float) -> None:
        self._newest_s = seconds
        self._spent_s += seconds
