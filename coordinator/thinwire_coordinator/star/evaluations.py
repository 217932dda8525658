"""Has the held-out losses measured by nodes: begins a measurement with a round, and carries out what it decides.

Everything here runs on the event loop and returns at once. `Upkeep` takes the results from `results`, and measures what
the nodes did not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_coordinator.hall.events import PartJudged
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.kept_replica import KeptReplica
from thinwire_coordinator.hall.measurement import (
    OPINIONS,
    Action,
    Judged,
    MeasureHere,
    Measurement,
    Part,
    SetMeasured,
    Tell,
    parts_of,
    smallest_of,
    tolerance_of,
)
from thinwire_coordinator.hall.measuring import PartWeights
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.trust.observer import Observer
from thinwire_coordinator.star.trust.weights import FULL_AFTER
from thinwire_proto.limits import evaluation_answer_s

log = logging.getLogger("thinwire.coordinator")


@dataclass(frozen=True)
class Result:
    """One result, or one part for the coordinator to measure. copy: the replica at the measurement's step."""

    measurement: Measurement
    copy: asyncio.Future[KeptReplica]
    action: MeasureHere | SetMeasured


class Evaluations:
    """The measurements by nodes. Inactive until `begin` is called.

    observer: says who is trusted, and learns from the answers. announce: announces the open round again to these nodes.
    """

    def __init__(
        self, hall: Hall, driver: RoundDriver, observer: Observer, announce: Callable[[Iterable[str]], None]
    ) -> None:
        self._hall = hall
        self._driver = driver
        self._observer = observer
        self._announce = announce
        self.results: asyncio.Queue[Result] = asyncio.Queue()
        """Its length is bounded by the number of parts and sets of one measurement, because the next one waits."""
        self._every = 0
        self._samples = 0
        self._measured: int | None = None
        self._current: Measurement | None = None
        self._copy: asyncio.Future[KeptReplica] | None = None
        self._silent: set[str] = set()  # sessions that did not answer in time
        self._alone = False
        self._weight_of = PartWeights(hall.state)
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, every: int, samples: int, measured: int | None) -> None:
        """Measure every `every` steps from now on. measured: the newest step that was measured."""
        self._every, self._samples, self._measured = every, samples, measured

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # for announcements

    def open_to(self, node: str) -> list[Part]:
        return self._current.open_to(node) if self._current is not None else []

    def step_for(self, node: str) -> int | None:
        """The step whose parameters a node has to keep, because it may be given parts of it."""
        current = self._current
        return current.step if current is not None and node in current.participants else None

    # events

    def opened(self, step: int, nodes: Iterable[str]) -> None:
        """A round has opened at a step. Must be called before it is announced."""
        if not self._every or (self._measured is not None and step - self._measured < self._every):
            return
        by_id = self._hall.members.by_id
        self._silent &= set(self._hall.members.by_session)
        able = [node for node in nodes if node in by_id and by_id[node].session not in self._silent]
        trusted = [node for node in able if self._observer.may_measure(node)]
        if self._current is not None:
            if self._current.waits_for_coordinator and (self._current.participants or len(trusted) < OPINIONS):
                return  # it has to catch up first
            text = f"step {self._current.step}: the nodes did not measure the held-out loss before the next measurement"
            tell(log, logging.WARNING, "coordinator.not_measured", text, set=None, reason=text)
        self._measured = step
        self._tell_if_alone(len(trusted))
        parts = parts_of(step, self._hall.state.held_out_sets, self._samples)
        self._copy = self._hall.copies.take()
        answer_s = evaluation_answer_s(self._hall.contract.round.length_s)
        weights = {part: self._weight_of(part) for part in parts}
        state, randomness = self._hall.state, self._hall.randomness
        within = tolerance_of(state.contract.model), smallest_of(state.held_out_sets)
        self._current = Measurement(step, parts, trusted, answer_s, randomness, weights, *within)
        self._carry_out(self._current.begin(self._driver.now()), announces=False)

    def answered(self, node: str, part: Part, loss: float) -> str:
        """A node reports the loss of a part. Returns why it is refused, in words, or nothing."""
        current = self._current
        if current is None:
            return "no measurement is in progress"
        now = self._driver.now()
        if refusal := current.why_refused(node, part, loss):
            self._carry_out(current.decline(node, part, now))
        else:
            self._carry_out(current.answer(node, part, loss, now))
        return refusal

    def left(self, node: str) -> None:
        """The session of a node has ended."""
        if self._current is not None:
            self._carry_out(self._current.leave(node, self._driver.now()))

    def wants(self, result: Result) -> bool:
        """Whether a result is still wanted: the measurement of a part may have been given up."""
        return isinstance(result.action, SetMeasured) or result.measurement is self._current

    def measured_here(self, measurement: Measurement, part: Part, loss: float) -> None:
        if measurement is self._current:
            self._carry_out(measurement.measured_here(part, loss))

    def _tick(self) -> None:
        if self._current is not None:
            self._carry_out(self._current.tick(self._driver.now()))

    # actions

    def _carry_out(self, actions: list[Action], *, announces: bool = True) -> None:
        current, copy = self._current, self._copy
        assert current is not None
        assert copy is not None
        told: dict[str, None] = {}
        judged = [action for action in actions if isinstance(action, Judged)]
        answers = [(found.node, found.result == "differed") for found in judged if found.result != "unanswered"]
        if answers:
            self._observer.measured(answers)
        for action in actions:
            if isinstance(action, Tell):
                told[action.node] = None
            elif isinstance(action, Judged):
                self._judged(action)
            else:
                self.results.put_nowait(Result(current, copy, action))
                if isinstance(action, MeasureHere):
                    self._hall.events.tell(PartJudged("", "coordinator"))
        if current.complete:
            told |= dict.fromkeys(current.participants)  # they need not keep the parameters any longer
            self._current = self._copy = None
        for node in current.silent:
            if node in self._hall.members.by_id:
                self._silent.add(self._hall.members.by_id[node].session)
        if announces and told:
            self._announce(told)
        self._set_timer()

    def _judged(self, found: Judged) -> None:
        self._hall.events.tell(PartJudged(found.node, found.result))
        if found.result != "differed":
            return
        node, part = found.node, found.part
        name = self._hall.members.by_id[node].name if node in self._hall.members.by_id else node[:8]
        tell(
            log,
            logging.WARNING,
            "coordinator.evaluation_differs",
            f"{name}: its held-out loss at step {part.step} is {found.loss}; the coordinator found {found.accepted}",
            node_id=node,
            name=name,
            step=part.step,
            set=part.name,
            loss=found.loss,
            accepted_loss=found.accepted,
        )

    def _tell_if_alone(self, trusted: int) -> None:
        """Say that the coordinator measures by itself, when that begins."""
        alone = trusted < OPINIONS
        if alone and not self._alone:
            reason = f"{OPINIONS} nodes with {FULL_AFTER} counted rounds and full trust are needed; there are {trusted}"
            text = f"the coordinator measures the held-out loss itself: {reason}"
            tell(log, logging.INFO, "coordinator.evaluation_by", text, measured_by="coordinator", reason=reason)
        self._alone = alone

    def _set_timer(self) -> None:
        self.stop()
        self._timer = None
        deadline = self._current.deadline if self._current is not None else None
        if deadline is not None:
            wait_s = max(0.0, deadline - self._driver.now())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)
