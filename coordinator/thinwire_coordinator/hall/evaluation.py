"""Measures the held-out loss and generates samples, on a copy of the replica so that training can continue."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from thinwire_common.logs import tell
from thinwire_coordinator.hall.generation import (
    SAMPLE_TOKENS,
    Sampling,
    generate,
    prompt_tokens,
    text_of,
    tokenizer_of,
)
from thinwire_proto.blobs import Blob, Blobs, HashingStopped, blob_of
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError, Damaged
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import DataSource, HeldOutSet, Stateless, task_of

log = logging.getLogger("thinwire.coordinator")

EvaluatedBy = Literal["coordinator", "nodes", "auto"]
SAMPLES = 64
"""Samples of each held-out set that are measured, unless the organizer says otherwise."""
BATCH = 8
OPERATIONS_MAX = 1e12
"""Operations of one measurement up to which `auto` chooses the coordinator: about 20 seconds of one core that does 50
billion a second in float32, and so about the time of one round."""


def choose_nodes(contract: Contract, sets: Sequence[HeldOutSet], samples: int) -> tuple[bool, str]:
    """Decide whether nodes shall measure the held-out loss, for `--evaluate auto`. Returns the reason too, in words.

    A forward pass takes two operations for each parameter and token, those of a frozen base included.
    """
    model = task_of(contract.model).model("meta")
    parameters = sum(parameter.numel() for _, parameter in model.named_parameters())
    tokens = contract.model.context * sum(min(samples, found.samples) for found in sets)
    operations = 2 * parameters * tokens
    text = f"a measurement takes about {operations:.1e} operations ({parameters:,} parameters, {tokens:,} tokens)"
    return operations > OPERATIONS_MAX, text


def nodes_evaluate(contract: Contract, sets: Sequence[HeldOutSet], evaluate: EvaluatedBy, samples: int) -> bool:
    """Whether nodes measure the held-out loss. Logs it if that is not the default."""
    if evaluate == "coordinator":
        return False
    by_nodes, reason = (True, "--evaluate nodes") if evaluate == "nodes" else choose_nodes(contract, sets, samples)
    by = "nodes" if by_nodes else "coordinator"
    who = "nodes measure" if by_nodes else "the coordinator measures"
    text = f"{who} the held-out loss: {reason}"
    tell(log, logging.INFO, "coordinator.evaluation_by", text, measured_by=by, reason=reason)
    return by_nodes


class HeldOut:
    """Measures the loss on samples that no node trains on.

    samples: how many of each set. The replica must not change during a call, so pass a copy.
    """

    def __init__(self, contract: Contract, data: DataSource, blobs: Blobs, samples: int = SAMPLES) -> None:
        self._data = data
        self._blobs = blobs
        self._whole: set[Blob] = set()  # blobs of held-out samples that are as their name says
        self.samples = samples
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
            with replica.in_use():
                text = "".join(text_of(tokenizer, tokens, going_on))
        except ConfigError:
            return None, time.thread_time() - began  # a run that has diverged goes on without samples
        return None if self._stopped.is_set() else text, time.thread_time() - began

    def measure(self, replica: Replica, held_out: HeldOutSet) -> float:
        """Return the mean loss on a set's fixed samples, in nats per token for text models; NaN if stopped. Raises
        Damaged, with the file's name, if the samples are not what they were when the run was created."""
        return self.measure_part(replica, held_out.name, held_out.spread(self.samples))

    @torch.no_grad()
    def measure_part(self, replica: Replica, name: str, samples: Sequence[int]) -> float:
        """The same for these samples of the set `name`."""
        try:
            self._check(self._data.held_out_needs(name, samples))
        except HashingStopped:
            return math.nan
        total = 0.0
        for start in range(0, len(samples), BATCH):
            if self._stopped.is_set():
                return math.nan
            part = samples[start : start + BATCH]
            batch = self._data.held_out(name, part)
            with replica.in_use():
                total += float(self._model.loss(replica.tensors, batch)) * len(part)
        return total / len(samples)

    def _check(self, blobs: Iterable[Blob]) -> None:
        """Compare blobs with their names, each once: damage would give another loss, or numbers that no model takes."""
        for blob in blobs:
            if blob not in self._whole and (found := blob_of(path := self._blobs.path(blob), self._stopped)) != blob:
                text = f"it has {found.size} bytes with the hash {found.hash[:16]}…"
                raise Damaged(f"{path} is damaged: {text}; restore it from the newest copy that you have")
            self._whole.add(blob)
