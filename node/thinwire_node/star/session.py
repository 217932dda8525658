"""One session with the swarm: catches up, follows updates and takes part in rounds.

A session runs eight tasks. Two follow the swarm (`follow`): one applies updates as they are sealed, the other keeps the
newest announcement. One task keeps the exchange's clock. `TrainingLoop` trains and extracts. `Delivery` sends
contributions and handles their outcomes while training continues. `Prefetch` fetches the data of the lease.
`Evaluation` fetches the data of the held-out parts, and reports their losses.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from thinwire_node.exchange.port import Announcement, Exchange, LinkLost
from thinwire_node.options import NodeOptions
from thinwire_node.runtime import Clocks
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.star import pacing
from thinwire_node.star.deliver import Delivery
from thinwire_node.star.follow import follow_rounds, follow_updates
from thinwire_node.star.situation import Situation
from thinwire_node.star.train import TrainingLoop
from thinwire_node.star.work import Work
from thinwire_proto.task import DataSource

log = logging.getLogger("thinwire.node")


@dataclass(frozen=True)
class SessionState:
    """The state of a session at one moment, for observers.

    doing: the newest decision of the training loop. to_deliver: contributions without an outcome."""

    announcement: Announcement | None
    head_step: int
    round_left_s: float | None
    clock_offset_s: float | None
    clock_error_s: float | None
    doing: pacing.Decision | None
    to_deliver: int


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
        self._clocks = clocks
        self._situation = Situation(head_step)
        self.is_open = True
        """Until `run` has ended."""
        self._delivery = Delivery(exchange, work, record, clocks, self._situation)
        self._prefetch = Prefetch(data, fetcher, record, clocks.now, self._situation.changed.set)
        fetch = self._prefetch.fetch_held_out
        self._evaluation = Evaluation(exchange, work, data, fetch, self._situation.changed.set)
        self._training = TrainingLoop(
            exchange,
            work,
            record,
            options,
            clocks,
            self._situation,
            self._delivery,
            self._prefetch,
            self._evaluation,
        )

    async def run(self) -> None:
        """Take part until the run is complete or enough rounds are done.

        Raises LinkLost, Refused, LocalError if this machine cannot keep up, or ReplicaError if the parameters differ
        from the swarm's."""
        exchange, work, situation = self._exchange, self._work, self._situation
        await exchange.clock.begin(self._probed)
        train = asyncio.ensure_future(self._training.run())
        others = (
            follow_updates(exchange, work, self._record, situation),
            follow_rounds(exchange, work, self._record, situation, self._prefetch, self._evaluation, self._clocks.now),
            exchange.clock.keep(self._probed),
            self._delivery.run(),
            self._prefetch.run(),
            self._evaluation.prepare(),
            self._evaluation.report(),
        )
        tasks = [train, *(asyncio.ensure_future(task) for task in others)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:  # a fixed order, so that the reported error does not depend on timing
                if task.done():
                    task.result()
            if not train.done():
                raise LinkLost("the coordinator ended the session")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.is_open = False
            await work.finish_jobs()

    def leave(self) -> None:
        """Stop training. `run` returns once the pending outcome has arrived."""
        self._situation.leaving = True
        self._situation.changed.set()

    @property
    def trained_through(self) -> int | None:
        """The last sample position in the momentum."""
        return self._work.trained_through_at_extraction

    def state(self) -> SessionState:
        """The state of the session now."""
        situation, reading, now = self._situation, self._exchange.clock.reading(), self._clocks.now()
        newest = situation.newest
        step = max(situation.head_step, newest.step if newest is not None else 0)
        view = self._training.view() if self._work.replica is not None else None
        return SessionState(
            announcement=newest,
            head_step=step,
            round_left_s=max(0.0, view.round.deadline - now) if view and view.round else None,
            clock_offset_s=reading.offset if reading else None,
            clock_error_s=reading.error if reading else None,
            doing=situation.doing,
            to_deliver=self._delivery.unsettled,
        )

    def _probed(self, jumped: bool) -> None:
        self._record.clock_jumps += jumped
        self._situation.changed.set()
