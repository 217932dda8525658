"""Measures the held-out losses of a replica, records them, and generates sample texts for the page.

All of it works on a copy of the replica, so that training can continue.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from thinwire_common.logs import tell
from thinwire_coordinator.hall.events import LossMeasured, Sampled
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.state_directory import SETS_MAX, RunState
from thinwire_coordinator.hall.measurement import SAMPLES, MeasuredBy, Part
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.blobs import Blob, BlobMissing, Blobs, HashingStopped, blob_of
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError, Damaged
from thinwire_proto.exact.replica import Replica
from thinwire_proto.generation import (
    SAMPLE_TOKENS,
    Sampling,
    first_prompt,
    generate,
    prompt_tokens,
    text_of,
    tokenizer_of,
)
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import DataSource, HeldOutSet, task_of

log = logging.getLogger("thinwire.coordinator")

SAMPLE_SHARE = 1 / 200
"""Largest share of the process's CPU time that samples may take, not counting the first and the last one."""


class Measuring:
    """held_out: measures. samples: whether to generate sample texts for the page. unit: of a step, in a word."""

    def __init__(self, hall: Hall, held_out: HeldOut, *, samples: bool, unit: str = "step") -> None:
        self._hall = hall
        self._held_out = held_out
        self._budget = SampleBudget() if samples else None
        self._unit = unit
        self.damaged: set[str] = set()
        """Held-out sets that could not be read the last time."""
        if (found := len(hall.state.data.held_out_sets())) > SETS_MAX:
            log.warning("there are %d held-out sets; the loss is measured on the first %d", found, SETS_MAX)

    @property
    def _sets(self) -> dict[str, HeldOutSet]:
        return {found.name: found for found in self._hall.state.held_out_sets}

    @property
    def samples(self) -> int:
        return self._held_out.samples

    def stop(self) -> None:
        """Abort the current measurement and any later one."""
        self._held_out.stop()

    async def newest_step(self) -> int | None:
        ledger = self._hall.state.watch_ledger
        recorded = await self._hall.workers.once_unlocked(Job.READ_STATUS, ledger.recorded)
        return max((step for step, _ in recorded.newest.values()), default=None)

    async def measure_all(self, copy: Replica, step: int) -> None:
        """Measure the loss on each held-out set, and generate a sample text if none has diverged. step: of the copy, in
        the unit of `schedule.steps`."""
        finite = True
        for held_out in self._sets.values():
            loss = await self._measure(held_out.name, self._held_out.measure, copy, held_out)
            if loss is not None:
                await self.record(step, held_out.name, loss, "coordinator")
            finite = finite and loss is not None and math.isfinite(loss)
        self._hall.measured_step = step
        if finite and copy.step:
            await self.sample(copy, step)

    async def measure_part(self, copy: Replica, name: str, samples: Sequence[int]) -> float | None:
        """The loss on samples of the set `name`. None if they are damaged: the run goes on without this measurement."""
        return await self._measure(name, self._held_out.measure_part, copy, name, samples)

    async def _measure(self, name: str, measure: Callable[..., float], *arguments: object) -> float | None:
        try:
            loss = await self._hall.workers.submit(Job.MEASURE_LOSS, measure, *arguments)
        except Damaged as error:
            self.damaged.add(name)
            text = f"the held-out loss on {name!r} is not measured: {error}"
            tell(log, logging.ERROR, "coordinator.not_measured", text, set=name, reason=str(error))
            return None
        self.damaged.discard(name)
        return loss

    def spread(self, name: str, spread: int) -> Sequence[int]:
        """The numbers of `spread` samples of a set."""
        return self._sets[name].spread(spread)

    async def record(self, step: int, name: str, loss: float, measured_by: MeasuredBy, of: str = "") -> None:
        """of: what was measured, in words, unless it is the replica."""
        hall, where = self._hall, f"{self._unit} {step}: {of}"
        bits_per_nat = self._sets[name].bits_per_nat(hall.contract.model.context)
        if math.isfinite(loss):
            ledger = hall.state.upkeep_ledger
            await hall.workers.once_unlocked(Job.WRITE_LOSS, ledger.record_loss, step, name, loss, measured_by)
            bits = loss * bits_per_nat if bits_per_nat else None
            tell(
                log,
                logging.INFO,
                "coordinator.loss_measured",
                f"{where}held-out loss {loss:.3f} nats per {self._sets[name].unit} on {name!r}",
                step=step,
                set=name,
                loss=loss,
                bits_per_byte=bits,
                measured_by=measured_by,
            )
        else:
            text = f"{where}the held-out loss on {name!r} is not finite; the run has diverged"
            tell(log, logging.WARNING, "coordinator.diverged", text, step=step, set=name)
        hall.events.tell(LossMeasured(step, name, loss))

    async def sample(self, copy: Replica, step: int) -> None:
        """Generate a sample for the page, if `SampleBudget` allows it."""
        hall, last = self._hall, step == self._hall.contract.schedule.steps
        if self._budget is None or not self._budget.due(time.process_time(), last=last):
            return
        prompt = first_prompt(hall.state.data.tokenizer)
        work = self._held_out.sample, copy, prompt, copy.step
        text, seconds = await hall.workers.submit(Job.WRITE_SAMPLE, *work)
        self._budget.took(seconds)
        if text is not None:
            hall.events.tell(Sampled(step, prompt, text))


EvaluatedBy = Literal["coordinator", "nodes", "auto"]
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


def nodes_evaluate(contract: Contract, sets: Sequence[HeldOutSet], evaluate: EvaluatedBy) -> bool:
    """Whether nodes measure the held-out loss. Logs it if that is not the default."""
    if evaluate == "coordinator":
        return False
    by_nodes, reason = (True, "--evaluate nodes") if evaluate == "nodes" else choose_nodes(contract, sets, SAMPLES)
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
        """Return the mean loss on a set's fixed samples, in nats per token or preference; NaN if stopped. Raises
        Damaged, with the file's name, if the samples are not what they were when the run was created."""
        return self.measure_part(replica, held_out.name, held_out.spread(self.samples))

    @torch.no_grad()
    def measure_part(self, replica: Replica, name: str, samples: Sequence[int]) -> float:
        """The same for these samples of the set `name`."""
        try:
            self._check(self._data.held_out_needs(name, samples))
        except HashingStopped:
            return math.nan
        total, weight = 0.0, 0
        for start in range(0, len(samples), BATCH):
            if self._stopped.is_set():
                return math.nan
            part = samples[start : start + BATCH]
            batch = self._data.held_out(name, part)
            with replica.in_use():
                total += float(self._model.loss(replica.tensors, batch)) * (of_batch := self._model.weight(batch))
            weight += of_batch
        return total / weight

    @torch.no_grad()
    def margins(self, replica: Replica, held_out: HeldOutSet) -> Tensor:
        """The margins of the preferences among a set's fixed samples, float32 [pairs]: see
        `thinwire_proto.task.LearnsPreferences`."""
        batches = (self._data.held_out(held_out.name, [sample]) for sample in held_out.spread(self.samples))
        with replica.in_use():
            return torch.cat([self._model.margins(replica.tensors, batch) for batch in batches])

    def _check(self, blobs: Iterable[Blob]) -> None:
        """Compare blobs with their names, each once: damage would give another loss, or numbers that no model takes."""
        for blob in blobs:
            if blob not in self._whole and (found := blob_of(path := self._blobs.path(blob), self._stopped)) != blob:
                text = f"it has {found.size} bytes with the hash {found.hash[:16]}…"
                raise Damaged(f"{path} is damaged: {text}; restore it from the newest copy that you have")
            self._whole.add(blob)


class PartWeights:
    """The weight of a part of a held-out set beside the other parts: what the mean loss of a part is the mean of.

    Read once, since a set has the same samples at each step. If its shard is damaged, its samples: the coordinator then
    does not measure it either, and says so."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._known: dict[Part, int] = {}  # at step 0

    def __call__(self, part: Part) -> int:
        key = replace(part, step=0)
        if key not in self._known:
            found = next(one for one in self._state.held_out_sets if one.name == part.name)
            samples = found.spread(part.spread)[part.start : part.start + part.count]
            try:
                self._known[key] = self._state.data.held_out_weight(part.name, samples)
            except BlobMissing:
                return part.count
        return self._known[key]


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
