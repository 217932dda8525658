"""Held-out loss, and what the model writes, on a copy of the parameters, so that the replica need not stand still."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import torch

from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import DataSource, Stateless, Writes, task_of

HELD_OUT_SAMPLES_MAX = 64
BATCH = 8
SAMPLE_BYTES = 120
SAMPLE_PIECE = 8
"""Tokens that a model writes before it is asked whether to go on."""
SAMPLE_TEMPERATURE = 0.8
SAMPLE_SHARE = 1 / 200
"""Of all the processor time that the process takes, samples take no more; the first and the last one come on top."""


class HeldOut:
    """Measures the loss on up to 64 samples that nobody trains on. Each call takes a replica that stands still: give
    a copy."""

    def __init__(self, contract: Contract, data: DataSource) -> None:
        self._data = data
        self._batch = data.held_out(HELD_OUT_SAMPLES_MAX)
        self._model = Stateless(task_of(contract.model).model("cpu"))
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Give up the measurement that runs, and any later one. May be called from any thread."""
        self._stopped.set()

    @torch.no_grad()
    def sample(self, replica: Replica, prompt: str, seed: int) -> tuple[str | None, float]:
        """What the model writes after a prompt, None if it was stopped or writes no text; and the seconds of processor
        time that this took."""
        began = time.thread_time()
        text = None
        if (tokens := prompt_of(self._model, self._data, prompt)) is not None:
            drawn = torch.zeros(0, dtype=torch.int64)
            for piece in pieces(self._model, replica, tokens, SAMPLE_BYTES, SAMPLE_TEMPERATURE, seed):
                drawn = torch.cat([drawn, piece])
                if self._stopped.is_set():
                    return None, time.thread_time() - began
            text = self._data.decode(drawn)
        return text, time.thread_time() - began

    @torch.no_grad()
    def measure(self, replica: Replica) -> float:
        """Mean loss; of a model of text, nats a token. Not a number if it was stopped."""
        count = len(self._batch[0])
        total = 0.0
        for start in range(0, count, BATCH):
            if self._stopped.is_set():
                return math.nan
            part = tuple(tensor[start : start + BATCH] for tensor in self._batch)
            total += float(self._model.loss(replica.tensors, part)) * len(part[0])
        return total / count


def prompt_of(model: Stateless, data: DataSource, prompt: str) -> torch.Tensor | None:
    """The tokens of a prompt, at least one; None if the model writes no text."""
    return data.encode(prompt or "\n") if isinstance(model.model, Writes) else None


def pieces(
    model: Stateless, replica: Replica, tokens: torch.Tensor, length: int, temperature: float, seed: int
) -> Iterator[torch.Tensor]:
    """`length` tokens after a prompt, some at a time."""
    generator = torch.Generator().manual_seed(seed)
    while length > 0:
        drawn = model.generate(replica.tensors, tokens, min(SAMPLE_PIECE, length), temperature, generator)
        tokens = torch.cat([tokens, drawn])
        length -= len(drawn)
        yield drawn


@torch.no_grad()
def sample(replica: Replica, data: DataSource, prompt: str, length: int, temperature: float, seed: int) -> str:
    """What the model writes after a prompt: `length` tokens, drawn at `temperature`, as text. Raises ConfigError if the
    model writes no text."""
    model = Stateless(task_of(replica.contract.model).model("cpu"))
    tokens = prompt_of(model, data, prompt)
    if tokens is None:
        raise ConfigError(f"a model of kind {replica.contract.model.kind!r} writes no text")
    return data.decode(torch.cat(list(pieces(model, replica, tokens, length, temperature, seed))))


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
