"""Measures the held-out loss and generates samples, on a copy of the replica so that training can continue."""

from __future__ import annotations

import itertools
import math
import threading
import time

import torch

from thinwire_coordinator.generation import SAMPLE_TOKENS, Sampling, generate, prompt_tokens, text_of, tokenizer_of
from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import Batch, DataSource, Stateless, task_of

HELD_OUT_SAMPLES_MAX = 64
BATCH = 8


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

    def sample(self, replica: Replica, prompt: str, seed: int) -> tuple[str | None, float]:
        """Return the text that the model generates after a prompt, and the seconds of CPU time that this took.

        The text is None if `stop` was called, the model generates no text, or the run has diverged.
        """
        began = time.thread_time()
        tokenizer = tokenizer_of(self._model, self._data)
        if tokenizer is None:
            return None, 0.0
        tokens, sampling = prompt_tokens(tokenizer, prompt), Sampling(SAMPLE_TOKENS, seed=seed)
        drawn = generate(self._model, replica.tensors, tokens, sampling, tokenizer.end)
        going_on = itertools.takewhile(lambda _: not self._stopped.is_set(), drawn)
        try:
            text = "".join(text_of(tokenizer, tokens, going_on))
        except ConfigError:
            return None, time.thread_time() - began  # a run that has diverged goes on without samples
        return None if self._stopped.is_set() else text, time.thread_time() - began

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


def spread(data: DataSource) -> Batch:
    """Up to HELD_OUT_SAMPLES_MAX evenly spread samples of the first held-out set."""
    first = data.held_out_sets()[0]
    count = min(HELD_OUT_SAMPLES_MAX, first.samples)
    return data.held_out(first.name, [number * (first.samples - 1) // max(1, count - 1) for number in range(count)])
