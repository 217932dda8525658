"""One session with the coordinator: catch up, follow updates and take part in rounds, until something ends it.

Five tasks run side by side: `_follow` applies updates as they are sealed, `_listen` keeps the newest announcement,
`_probe` keeps the coordinator's clock, `_train` trains and cuts as `pacing` decides, and `_deliver` sends what was
cut and takes its receipt, while the training goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_node.exchange.coordinator.clock import CoordinatorClock, Probe
from thinwire_node.exchange.coordinator.keeping_up import KeepingUp
from thinwire_node.exchange.coordinator.link import Link, LinkLost
from thinwire_node.exchange.coordinator.record import Record
from thinwire_node.training import pacing
from thinwire_node.training.trainer import Interrupted
from thinwire_node.training.work import Contribution, ParametersDiffer, Work
from thinwire_proto.errors import LocalError
from thinwire_proto.limits import LOOK_AGAIN_S, SUSPENDED_S, probe_every_s
from thinwire_proto.wire.service_pb2 import Announcement, ContributionHeader, Receipt

log = logging.getLogger("thinwire.node")

CATCH_UP_REPORT_STEPS = 100
FIRST_PROBES = 3


@dataclass(frozen=True)
class NodeOptions:
    """What the volunteer chose for this machine."""

    name: str
    micro_batch: int
    rounds: int | None


@dataclass(frozen=True)
class Clocks:
    """now: seconds on a monotonic clock. asleep_s: grows by what the machine sleeps."""

    now: Callable[[], float]
    asleep_s: Callable[[], float]


@dataclass(frozen=True)
class SessionState:
    """Where a session stands at a moment, for whoever watches. doing: what the training decided last."""

    announcement: Announcement | None
    head_step: int
    round_left_s: float | None
    clock_offset_s: float | None
    clock_error_s: float | None
    doing: pacing.Decision | None
    to_deliver: int


@dataclass(frozen=True)
class _Outgoing:
    """A contribution that is ready to be sent; without a payload it says that there is nothing."""

    announcement: Announcement
    header: ContributionHeader
    contribution: Contribution | None


class Session:
    def __init__(
        self, link: Link, work: Work, record: Record, options: NodeOptions, clocks: Clocks, head_step: int
    ) -> None:
        """`head_step`: how many steps were sealed when the node joined."""
        self._link = link
        self._work = work
        self._record = record
        self._habits = options
        self._clocks = clocks
        self._head_step = head_step
        self._spec = work.contract.round
        self._clock = CoordinatorClock()
        self._asleep_s = clocks.asleep_s()
        self._probe_now = asyncio.Event()
        self._newest: Announcement | None = None
        self._changed = asyncio.Event()
        self._contributed: tuple[int, int] | None = None  # (term, round)
        self._hurry = False
        self._to_send: asyncio.Queue[_Outgoing] = asyncio.Queue(1)
        self._delivering = False
        self._doing: pacing.Decision | None = None
        self._said = ""
        self._leaving = False

    async def run(self) -> None:
        """Follow and take part, until the run is complete or enough rounds are done. Raises LinkLost, Refused,
        LocalError if the link cannot keep up, or ReplicaError if the parameters are not the swarm's."""
        for _ in range(FIRST_PROBES):
            await self._probe_once()
        train = asyncio.ensure_future(self._train())
        others = (self._follow(), self._listen(), self._probe(), self._deliver())
        tasks = [train, *(asyncio.ensure_future(task) for task in others)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:  # in this order, so that what is told does not depend on chance
                if task.done():
                    task.result()
            if not train.done():
                raise LinkLost("the coordinator ended the session")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._work.finish_jobs()

    def state(self) -> SessionState:
        now, newest, known = self._clocks.now(), self._newest, bool(self._clock)
        step = max(self._head_step, newest.step if newest is not None else 0)
        view = self._view(newest) if self._work.replica is not None else None
        return SessionState(
            announcement=newest,
            head_step=step,
            round_left_s=max(0.0, view.round.deadline - now) if view and view.round else None,
            clock_offset_s=self._clock.offset(now) if known else None,
            clock_error_s=self._clock.error(now) if known else None,
            doing=self._doing,
            to_deliver=self._to_send.qsize() + self._delivering,
        )

    def leave(self) -> None:
        """Train no more; `run` is over when the receipt that is out has come."""
        self._leaving = True
        self._changed.set()

    async def _follow(self) -> None:
        work, now = self._work, self._clocks.now
        assert work.replica is not None
        keeping_up = KeepingUp(work.replica.step, self._head_step, now())
        asked_at = now()
        async for sealed in self._link.updates(work.replica.step, work.replica):
            came_at = now()
            await work.apply(sealed)
            self._record.phases["apply"].add(work.apply_s)
            self._changed.set()
            step = sealed.row.step + 1
            if step < self._head_step:
                fetch_s, replay_s = came_at - asked_at, now() - came_at
                cannot = keeping_up.applied(sealed.size, fetch_s, replay_s, step, sealed.head_step, now())
                if cannot:
                    raise LocalError(cannot)
                if step % CATCH_UP_REPORT_STEPS == 0:
                    text = f"catching up: step {step} of {sealed.head_step}"
                    tell(log, logging.INFO, "node.catching_up", text, step=step, head_step=sealed.head_step)
                    await work.save_if_due()
                if self._newest is None:
                    self._head_step = sealed.head_step  # the swarm moves on meanwhile
            asked_at = now()

    async def _listen(self) -> None:
        while self._work.replica is None or self._work.replica.step < self._head_step:
            await self._work.reached(self._head_step)  # who attends is waited for, so catch up first
        async for announcement in self._link.announcements():
            before, self._newest = self._newest, announcement
            if announcement.state == Announcement.STATE_ROUND:
                self._work.lease.renew(range(run.start, run.start + run.count) for run in announcement.lease)
                self._notice_what_passed(before, announcement)
            self._changed.set()

    def _notice_what_passed(self, before: Announcement | None, announcement: Announcement) -> None:
        """A round that was ours to contribute to, and went on without us."""
        if (
            before is not None
            and before.state == Announcement.STATE_ROUND
            and before.step < announcement.step
            and self._contributed != (before.term, before.round)
        ):
            self._hurry = True

    # the coordinator's clock

    async def _probe(self) -> None:
        every_s = probe_every_s(self._spec.length_s)
        while True:
            self._probe_now.clear()
            await _set_or_after(self._probe_now, every_s)
            await self._probe_once()

    async def _probe_once(self) -> None:
        self._look_for_sleep()
        sent = self._clocks.now()
        reply = await self._link.probe()
        if self._look_for_sleep():
            return
        probe = Probe(sent, reply.received_us / 1e6, reply.answered_us / 1e6, self._clocks.now())
        odd = self._clock.add(probe, reply.term)
        if odd:
            self._record.clock_jumps += 1
            tell(log, logging.WARNING, "node.clock_jump", odd, reason=odd)
        self._changed.set()

    def _look_for_sleep(self) -> bool:
        """Whether the machine has slept since this was asked last; the offset is then forgotten."""
        before, self._asleep_s = self._asleep_s, self._clocks.asleep_s()
        if abs(self._asleep_s - before) <= SUSPENDED_S:
            return False
        slept_s = self._asleep_s - before
        text = f"this machine slept for {slept_s:.0f} s; asking for the time anew"
        tell(log, logging.INFO, "node.slept", text, slept_s=slept_s)
        self._clock.forget()
        self._probe_now.set()
        return True

    # training

    async def _train(self) -> None:
        work, record = self._work, self._record
        if work.pending is not None:  # a lost session, or the life before, left its receipt open
            await self._settle(await self._link.ask_receipt(work.pending.hash), tokens=0)
        while not self._done():
            if self._leaving:
                await work.settled()
                return
            self._changed.clear()
            newest = self._newest
            if self._look_for_sleep() or not self._clock:
                self._probe_now.set()
            decision = self._doing = pacing.decide(self._view(newest), self._spec)
            if isinstance(decision, pacing.Train):
                began, computed_s = self._clocks.now(), work.trainer.compute_s
                try:
                    trained = await work.train(decision.samples)
                except Interrupted:
                    continue
                record.trained(trained, self._clocks.now() - began, work.trainer.compute_s - computed_s)
            elif isinstance(decision, pacing.Extract):
                assert newest is not None
                await self._extract(newest, decision.why)
            elif isinstance(decision, pacing.SayNothing):
                assert newest is not None
                await self._say_nothing(newest)
            elif isinstance(decision, pacing.Drop):
                await self._drop(decision.why)
            else:
                await self._wait(newest, decision.why)

    def _done(self) -> bool:
        if self._habits.rounds is not None and self._record.counted >= self._habits.rounds:
            return True
        newest, work = self._newest, self._work
        if newest is None or newest.state != Announcement.STATE_COMPLETE or work.pending is not None:
            return False
        if work.replica is None or work.replica.step < newest.step:
            return False
        tell(log, logging.INFO, "node.run_complete", "the run is complete", step=newest.step)
        return True

    def _view(self, newest: Announcement | None) -> pacing.View:
        work, now = self._work, self._clocks.now()
        assert work.replica is not None
        current = None
        if newest is not None and newest.state == Announcement.STATE_ROUND and self._clock:
            deadline = self._clock.here(newest.clock_us / 1e6 + newest.time_left_ms / 1000, now)
            current = pacing.RoundView(newest.step, deadline, self._clock.error(now))
        return pacing.View(
            now=now,
            round=current,
            contributed=newest is not None and self._contributed == (newest.term, newest.round),
            out=work.pending is not None or not self._to_send.empty(),
            hurry=self._hurry,
            replica_step=work.replica.step,
            base_step=work.trainer.base_step,
            samples=work.trainer.samples,
            leased=work.lease.left,
            sample_s=self._record.speed.sample_s,
            tail_s=self._record.tail.seconds(self._spec.length_s),
            micro_batch=work.contract.rule.micro_batch_max(self._habits.micro_batch),
        )

    async def _wait(self, newest: Announcement | None, why: str) -> None:
        """Until something changes; a round that is over by our clock is looked at again soon, at the latest."""
        if newest is not None and newest.state == Announcement.STATE_WAITING and newest.text != self._said:
            self._said = newest.text
            tell(log, logging.INFO, "node.waiting", newest.text, reason=newest.text)
        log.debug("waiting: %s", why)
        began = self._clocks.now()
        await _set_or_after(self._changed, LOOK_AGAIN_S)
        self._record.phases["wait"].add(self._clocks.now() - began)

    async def _drop(self, why: str) -> None:
        self._hurry = True
        self._record.too_old += 1
        tell(log, logging.INFO, "node.gradient_dropped", f"gradient dropped: {why}", reason=why)
        await self._work.drop_gradient()

    async def _extract(self, announcement: Announcement, why: str) -> None:
        began = self._clocks.now()
        contribution = await self._work.contribution(announcement)
        if contribution is None:
            return  # an update came in between; look again
        self._record.encoded(contribution, self._clocks.now() - began)
        self._contributed = (announcement.term, announcement.round)
        log.debug("round %d: cut, since %s", announcement.round, why)
        self._tell_dropped(contribution.dropped)
        header = ContributionHeader(
            term=announcement.term,
            round=announcement.round,
            step=contribution.step,
            base_step=contribution.base_step,
            fingerprint=contribution.fingerprint,
            samples=contribution.samples,
            loss=contribution.loss,
            dropped=contribution.dropped,
            compute_ms=contribution.compute_ms,
            trained_through=contribution.trained_through,
        )
        await self._to_send.put(_Outgoing(announcement, header, contribution))

    async def _say_nothing(self, announcement: Announcement) -> None:
        """Nothing was trained: say so, that nobody waits, and that the lease is filled up again."""
        work = self._work
        self._contributed = (announcement.term, announcement.round)
        dropped = work.trainer.dropped
        self._tell_dropped(dropped)
        await work.drop_gradient()
        header = ContributionHeader(
            term=announcement.term,
            round=announcement.round,
            step=announcement.step,
            base_step=announcement.step,
            dropped=dropped,
            trained_through=work.lease.trained_through,
        )
        await self._to_send.put(_Outgoing(announcement, header, None))

    def _tell_dropped(self, dropped: int) -> None:
        self._record.dropped += dropped
        if dropped:
            text = f"{dropped} micro-batches dropped: loss or gradient was not finite"
            tell(log, logging.WARNING, "node.micro_batches_dropped", text, micro_batches=dropped)

    # delivering

    async def _deliver(self) -> None:
        while True:
            outgoing = await self._to_send.get()
            contribution = outgoing.contribution
            if contribution is None:
                self._record.heard(await self._link.contribute(outgoing.header, b""))
                continue
            began, self._delivering = self._clocks.now(), True
            try:
                receipt = await self._link.contribute(outgoing.header, contribution.payload)
            finally:
                self._delivering = False
            if receipt.arrived_us and self._clock:
                self._note_arrival(outgoing.announcement, contribution, receipt, began)
            await self._settle(receipt, contribution.samples * self._work.contract.model.context)

    def _note_arrival(self, round_: Announcement, sent: Contribution, receipt: Receipt, began: float) -> None:
        now, record = self._clocks.now(), self._record
        arrived = self._clock.here(receipt.arrived_us / 1e6, now)
        record.tail.arrived(len(sent.payload), min(arrived + self._clock.error(now), now) - began)
        record.phases["upload"].add(max(0.0, arrived - began))
        record.phases["receipt"].add(max(0.0, now - arrived))
        record.slack_s = (round_.clock_us + round_.time_left_ms * 1000 - receipt.arrived_us) / 1e6

    async def _settle(self, receipt: Receipt, tokens: int) -> None:
        """`tokens`: that the contribution stands for. To its end, once begun: the compute thread does its part whatever
        becomes of this task, and then nobody would ask for the receipt again."""
        await asyncio.shield(asyncio.ensure_future(self._settle_whole(receipt, tokens)))

    async def _settle_whole(self, receipt: Receipt, tokens: int) -> None:
        counted = receipt.outcome == Receipt.OUTCOME_COUNTED
        await self._work.settle(counted)
        self._record.heard(receipt)
        if counted:
            self._hurry = False
            self._record.counted += 1
            self._record.tokens += tokens
        else:
            self._record.not_counted += 1
            self._record.not_counted_why = receipt.text
            differs, text = receipt.reason == Receipt.REASON_REPLICA_DIFFERS, f"not counted: {receipt.text}"
            tell(log, logging.WARNING, "node.not_counted", text, reason=receipt.text, replica_differs=differs)
        if receipt.reason == Receipt.REASON_REPLICA_DIFFERS:
            raise ParametersDiffer(receipt.text)
        self._changed.set()


async def _set_or_after(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or for so long. Not `asyncio.wait_for`: before Python 3.12 that swallows a cancellation which
    comes in the same moment as the event."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
