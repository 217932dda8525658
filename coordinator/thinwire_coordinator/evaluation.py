"""Measures the held-out loss and generates samples, on a copy of the replica so that training can continue."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import torch

from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import Batch, DataSource, Stateless, Writes, task_of

HELD_OUT_SAMPLES_MAX = 64
BATCH = 8
SAMPLE_BYTES = 120
SAMPLE_PIECE = 8
"""Tokens that the model generates between two checks whether to stop."""
SAMPLE_TEMPERATURE = 0.8
SAMPLE_SHARE = 1 / 200
"""Largest share of the process's CPU time that samples may take, not counting the first and the last one."""


class HeldOut:
    """Measures the loss on up to 64 samples that no node trains on.

    The replica must not change during a call, so pass a copy.
    """

    def __init__(self, contract: Contract, data: DataSource, blobs: Blobs) -> None:
        self._data = data
        self._batch = spread(data)
        self._model = Stateless(task_of(contract.model).model("cpu", blobs))
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Abort the current measurement and any later one. Any thread may call this."""
        self._stopped.set()

    @torch.no_grad()
    def sample(self, replica: Replica, prompt: str, seed: int) -> tuple[str | None, float]:
        """Return the text that the model generates after a prompt, and the seconds of CPU time that this took.

        The text is None if `stop` was called or the model generates no text.
        """
        began = time.thread_time()
        text = None
        if (tokens := prompt_of(self._model, self._data, prompt)) is not None:
            assert self._data.tokenizer is not None
            drawn = torch.zeros(0, dtype=torch.int64)
            for piece in pieces(self._model, replica, tokens, SAMPLE_BYTES, SAMPLE_TEMPERATURE, seed):
                drawn = torch.cat([drawn, piece])
                if self._stopped.is_set():
                    return None, time.thread_time() - began
            text = self._data.tokenizer.decode(drawn)
        return text, time.thread_time() - began

    @torch.no_grad()
    def measure(self, replica: Replica) -> float:
        """Return the mean loss, in nats per token for text models; NaN if `stop` was called."""
        count = len(self._batch[0])
        total = 0.0
        for start in range(0, count, BATCH):
            if self._stopped.is_set():
                return math.nan
            part = tuple(tensor[start : start + BATCH] for tensor in self._batch)
            total += float(self._model.loss(replica.tensors, part)) * len(part[0])
        return total / count


def prompt_of(model: Stateless, data: DataSource, prompt: str) -> torch.Tensor | None:
    """The tokens of a prompt, at least one; None if the model generates no text."""
    tokenizer = data.tokenizer
    return tokenizer.encode(prompt or "\n") if tokenizer is not None and isinstance(model.model, Writes) else None


def spread(data: DataSource) -> Batch:
    """Up to HELD_OUT_SAMPLES_MAX evenly spread samples of the first held-out set."""
    first = data.held_out_sets()[0]
    count = min(HELD_OUT_SAMPLES_MAX, first.samples)
    return data.held_out(first.name, [number * (first.samples - 1) // max(1, count - 1) for number in range(count)])


def pieces(
    model: Stateless, replica: Replica, tokens: torch.Tensor, length: int, temperature: float, seed: int
) -> Iterator[torch.Tensor]:
    """Generate `length` tokens after a prompt, SAMPLE_PIECE at a time."""
    generator = torch.Generator().manual_seed(seed)
    while length > 0:
        drawn = model.generate(replica.tensors, tokens, min(SAMPLE_PIECE, length), temperature, generator)
        tokens = torch.cat([tokens, drawn])
        length -= len(drawn)
        yield drawn


@torch.no_grad()
def sample(
    replica: Replica, data: DataSource, blobs: Blobs, prompt: str, length: int, temperature: float, seed: int
) -> str:
    """Generate `length` tokens after a prompt, drawn at `temperature`, and return them as text.

    Raises ConfigError if the model generates no text.
    """
    model = Stateless(task_of(replica.contract.model).model("cpu", blobs))
    tokens = prompt_of(model, data, prompt)
    if tokens is None or data.tokenizer is None:
        raise ConfigError(f"a model of kind {replica.contract.model.kind!r} generates no text")
    return data.tokenizer.decode(torch.cat(list(pieces(model, replica, tokens, length, temperature, seed))))


class SampleBudget:
    """Decides when the next sample may be generated, assuming that it costs as much as the newest one."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._newest_s = 0.0

    def due(self, process_s: float, *, last: bool) -> bool:
        """Whether a sample is due. process_s: CPU time of the process so far. last: whether the run is complete."""
        return last or self._spent_s + self._newest_s <= SAMPLE_SHARE * process_s

    def took(self, seconds: float) -> None:
        self._newest_s = seconds
        self._spent_s += seconds
