"""Measures the held-out losses of a replica, records them, and generates sample texts for the page."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from thinwire_common.logs import tell
from thinwire_coordinator.hall.evaluation import HeldOut
from thinwire_coordinator.hall.events import LossMeasured, Sampled
from thinwire_coordinator.hall.generation import SampleBudget, first_prompt
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.state_directory import SETS_MAX
from thinwire_coordinator.hall.measurement import MeasuredBy
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.errors import Damaged
from thinwire_proto.exact.replica import Replica

log = logging.getLogger("thinwire.coordinator")


class Measuring:
    """held_out: measures. samples: whether to generate sample texts for the page. unit: of a step, in a word."""

    def __init__(self, hall: Hall, held_out: HeldOut, *, samples: bool, unit: str = "step") -> None:
        self._hall = hall
        self._held_out = held_out
        self._budget = SampleBudget() if samples else None
        self._unit = unit
        self._sets = {found.name: found for found in hall.state.held_out_sets}
        self.damaged: set[str] = set()
        """Held-out sets that could not be read the last time."""
        if (found := len(hall.state.data.held_out_sets())) > SETS_MAX:
            log.warning("there are %d held-out sets; the loss is measured on the first %d", found, SETS_MAX)

    @property
    def samples(self) -> int:
        """Samples of each held-out set that are measured."""
        return self._held_out.samples

    def stop(self) -> None:
        """Abort the current measurement and any later one."""
        self._held_out.stop()

    async def newest_step(self) -> int | None:
        """The newest step of which a loss is recorded."""
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
                f"{where}held-out loss {loss:.3f} nats per token on {name!r}",
                step=step,
                set=name,
                loss=loss,
                bits_per_byte=bits,
                measured_by=measured_by,
            )
        else:
            text = f"{where}the held-out loss on {name!r} is not finite; the run has diverged"
            tell(log, logging.WARNING, "coordinator.diverged", text, step=step, set=name)
        hall.events.tell(LossMeasured(step, name, loss, measured_by))

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
