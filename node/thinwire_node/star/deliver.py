"""Sends contributions and handles their outcomes while training continues."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_node.exchange.port import AnnouncedRound, Claim, Exchange, Outcome
from thinwire_node.part import ParametersDiffer
from thinwire_node.runtime import Clocks
from thinwire_node.session.record import Record
from thinwire_node.star.situation import Situation
from thinwire_node.star.work import Extraction, Work
from thinwire_proto.wire.reasons import Reason

log = logging.getLogger("thinwire.node")


@dataclass(frozen=True)
class Outgoing:
    """A claim that is ready to send. contribution: None if the node has nothing for the round."""

    round: AnnouncedRound
    claim: Claim
    contribution: Extraction | None


class Delivery:
    """Publishes contributions one at a time."""

    def __init__(self, exchange: Exchange, work: Work, record: Record, clocks: Clocks, situation: Situation) -> None:
        self._exchange = exchange
        self._work = work
        self._record = record
        self._clocks = clocks
        self._situation = situation
        self._queue: asyncio.Queue[Outgoing] = asyncio.Queue(1)
        self._sending = False

    @property
    def waiting(self) -> bool:
        return not self._queue.empty()

    @property
    def unsettled(self) -> int:
        return self._queue.qsize() + self._sending

    async def send(self, outgoing: Outgoing) -> None:
        await self._queue.put(outgoing)

    async def run(self) -> None:
        """Send claims until cancelled. Raises ParametersDiffer if an outcome says that the replica differs."""
        while True:
            outgoing = await self._queue.get()
            contribution = outgoing.contribution
            if contribution is None:
                self._record.heard(await self._exchange.publish(outgoing.claim, b""))
                continue
            began, self._sending = self._clocks.now(), True
            try:
                outcome = await self._exchange.publish(outgoing.claim, contribution.payload)
            finally:
                self._sending = False
            self._note_arrival(outgoing.round, len(contribution.payload), outcome, began)
            await self.settle(outcome, contribution.claim.samples)

    def _note_arrival(self, round_: AnnouncedRound, payload_bytes: int, outcome: Outcome, began: float) -> None:
        reading, record, now = self._exchange.clock.reading(), self._record, self._clocks.now()
        if outcome.arrived is None or reading is None:
            return
        arrived = reading.here(outcome.arrived)
        record.tail.arrived(payload_bytes, min(arrived + reading.error, now) - began)
        record.phases["upload"].add(max(0.0, arrived - began))
        record.phases["receipt"].add(max(0.0, now - arrived))
        record.slack_s = round_.deadline - outcome.arrived

    async def settle(self, outcome: Outcome, samples: int) -> None:
        """Handle the outcome of a contribution of so many samples.

        Cancellation does not interrupt this: the compute thread would settle the contribution anyway, and no later
        session would ask for its outcome."""
        await asyncio.shield(asyncio.ensure_future(self._settle_whole(outcome, samples)))

    async def _settle_whole(self, outcome: Outcome, samples: int) -> None:
        await self._work.settle(outcome.counted)
        self._record.heard(outcome)
        if outcome.counted:
            self._situation.hurry = False
            self._record.counted += 1
            self._record.tokens += samples * self._record.tokens_a_sample
        else:
            self._record.not_counted += 1
            self._record.not_counted_why = outcome.text
            differs, text = outcome.reason is Reason.REPLICA_DIFFERS, f"not counted: {outcome.text}"
            tell(log, logging.WARNING, "node.not_counted", text, reason=outcome.text, replica_differs=differs)
        if outcome.reason is Reason.REPLICA_DIFFERS:
            raise ParametersDiffer(outcome.text)
        self._situation.changed.set()
