"""One session with the swarm: catches up, follows updates and takes part in rounds.

A session runs eight tasks. Two follow the swarm: one applies updates as they are sealed, the other keeps the
newest announcement. One task keeps the exchange's clock. `TrainingLoop` trains and extracts. `Delivery` sends
contributions and handles their outcomes while training continues. `Prefetch` fetches the data of the lease.
`Evaluation` fetches the data of the held-out parts, and reports their losses.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from thinwire_node.exchange.port import Amended, AnnouncedRound, Exchange, LinkLost, Paused, Waiting
from thinwire_node.report import PartView
from thinwire_node.runtime import Clocks, together
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.star import pacing
from thinwire_node.star.deliver import Delivery
from thinwire_node.star.situation import Situation
from thinwire_node.star.train import TrainingLoop
from thinwire_node.star.work import Work
from thinwire_proto.task import DataSource

log = logging.getLogger("thinwire.node")

CATCH_UP_REPORT_STEPS = 100


class Session:
    """One session. `head_step`: the number of sealed steps when the node joined."""

    def __init__(
        self,
        exchange: Exchange,
        work: Work,
        record: Record,
        options: NodeOptions,
        clocks: Clocks,
        head_step: int,
        data: DataSource,
        fetcher: BlobFetcher,
    ) -> None:
        self._exchange = exchange
        self._work = work
        self._record = record
        record.tokens_a_sample = data.tokens_a_sample(work.contract.model.context)
        self._clocks = clocks
        self._situation = Situation(head_step)
        self.is_open = True
        """Until `run` has ended."""
        self._delivery = Delivery(exchange, work, record, clocks, self._situation)
        self._prefetch = Prefetch(data, fetcher, record, clocks.now, self._situation.changed.set)
        fetch = self._prefetch.fetch_held_out
        self._evaluation = Evaluation(exchange, work, data, fetch, self._situation.changed.set)
        self._training = TrainingLoop(
            exchange, work, record, options, clocks, self._situation, self._delivery, self._prefetch, self._evaluation
        )

    async def run(self) -> None:
        """Take part until the run is complete or enough rounds are done.

        Raises LinkLost, Refused, LocalError if this machine cannot keep up, or ReplicaError if the parameters differ
        from the swarm's."""
        exchange, work = self._exchange, self._work
        work.trainer.resume()
        await exchange.clock.begin(self._probed)
        try:
            async with together(
                self._training.run(),
                self._follow_updates(),
                self._follow_rounds(),
                exchange.clock.keep(self._probed),
                self._delivery.run(),
                self._prefetch.run(),
                self._evaluation.prepare(),
                self._evaluation.report(),
            ) as tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:  # a fixed order, so that the reported error does not depend on timing
                    if task.done():
                        task.result()
                if not tasks[0].done():
                    raise LinkLost("the coordinator ended the session")
        finally:
            self.is_open = False
            await work.finish_jobs()

    async def _follow_updates(self) -> None:
        """Apply updates until the exchange ends. Raises ReplicaError if the parameters differ from the swarm's."""
        work, situation = self._work, self._situation
        assert work.replica is not None
        async with aclosing(self._exchange.updates(work.replica, lambda: work.saved_s)) as updates:
            async for sealed in updates:
                await work.apply(sealed)
                self._record.phases["apply"].add(work.apply_s)
                situation.changed.set()
                step = sealed.row.step + 1
                if step >= situation.head_step:
                    continue
                if step % CATCH_UP_REPORT_STEPS == 0:
                    text = f"catching up: step {step} of {sealed.head_step}"
                    log.info("%s", text)
                    await work.save_if_due()
                if situation.newest is None:
                    situation.head_step = sealed.head_step  # the swarm advances during the catch-up

    async def _follow_rounds(self) -> None:
        """Listen to announcements until the exchange ends. Catches up first, because the swarm waits for every node
        that listens."""
        work, situation = self._work, self._situation
        while work.replica is None or work.replica.step < situation.head_step:
            await work.reached(situation.head_step)
        async with aclosing(self._exchange.rounds()) as announcements:
            async for announcement in announcements:
                if isinstance(announcement, Amended):
                    await work.amend(announcement.contract)
                    continue
                if isinstance(announcement, Paused):
                    self._record.paused(announcement.text, announcement.resumes_in_s, self._clocks.now())
                else:
                    self._record.goes_on()
                if announcement == situation.newest:
                    continue  # it changes nothing
                if isinstance(announcement, AnnouncedRound):
                    work.lease.renew(announcement.lease)
                    self._prefetch.renew(work.lease, announcement.upcoming)
                self._evaluation.announced(announcement)
                situation.announced(announcement)

    def leave(self) -> None:
        """Stop training. `run` returns once the pending outcome has arrived."""
        self._situation.leaving = True
        self._situation.changed.set()

    def finish(self) -> None:
        """Stop training once the contribution at hand has its outcome. `run` then returns."""
        self._situation.finishing = True
        self._situation.changed.set()

    def rest(self) -> None:
        """Stop training. `run` then returns."""
        self._situation.resting = True
        self._situation.changed.set()

    @property
    def trained_through(self) -> int | None:
        """The last sample position in the momentum."""
        return self._work.trained_through_at_extraction

    def view(self, step: int | None) -> PartView:
        """The state of the session now. step: of the replica."""
        situation, reading = self._situation, self._exchange.clock.reading()
        newest, current = situation.newest, situation.round
        head_step = max(situation.head_step, newest.step if newest is not None else 0)
        left_s = None
        if current is not None and reading is not None and step is not None:
            left_s = max(0.0, reading.here(current.deadline) - self._clocks.now())
        return PartView(
            self._words(step, head_step),
            step=step,
            head_step=head_step,
            round=current.number if current is not None else None,
            round_left_s=left_s,
            clock_error_s=reading.error if reading is not None else None,
            to_deliver=self._delivery.unsettled,
        )

    def _words(self, step: int | None, head_step: int) -> str:
        announced, doing = self._situation.newest, self._situation.doing
        if announced is None:
            behind = step is not None and step < head_step
            return f"catching up: step {step} of {head_step}" if behind else "waiting"
        if isinstance(announced, Waiting):
            return announced.text
        if isinstance(doing, pacing.Wait):
            waits_for_receipt = self._delivery.unsettled > 0
            return "delivering: waiting for the receipt" if waits_for_receipt else f"waiting: {doing.why}"
        return "training"

    def _probed(self, jumped: bool) -> None:
        self._record.clock_jumps += jumped
        self._situation.changed.set()
