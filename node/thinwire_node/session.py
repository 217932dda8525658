"""One session with the coordinator: join, catch up, follow updates and take part in rounds, until something ends it.

Three tasks run side by side: `_follow` applies updates as they are sealed, `_listen` keeps the newest announcement, and
`_take_part` trains and contributes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from thinwire_node.cut import Cut
from thinwire_node.demo import Sent
from thinwire_node.link import Link, Refused
from thinwire_node.state import Head, NodeState
from thinwire_node.work import Contribution, Work
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.corpus import Corpus, unpack_corpus
from thinwire_proto.errors import ReplicaError
from thinwire_proto.models import check_manifest
from thinwire_proto.replica import Replica, load_replica
from thinwire_proto.rows import contribution_hash
from thinwire_proto.service_pb2 import Announcement, ContributionHeader, Receipt

log = logging.getLogger("thinwire.node")

SAVE_INTERVAL_S = 60.0
CATCH_UP_REPORT_STEPS = 100


@dataclass
class Pending:
    """A contribution whose receipt is still out."""

    hash: bytes
    sent: Sent


@dataclass
class Record:
    """What this node did since it started; it outlives sessions."""

    counted: int = 0
    not_counted: int = 0
    dropped: int = 0
    resyncs: int = 0
    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    pending: Pending | None = None
    complete: bool = False
    cut: Cut = field(default_factory=Cut)


@dataclass(frozen=True)
class Habits:
    """What the volunteer chose for this machine."""

    name: str
    micro_batch: int
    rounds: int | None


class Session:
    def __init__(self, link: Link, state: NodeState, record: Record, habits: Habits) -> None:
        self._link = link
        self._state = state
        self._record = record
        self._habits = habits
        self._newest: Announcement | None = None
        self._announced = asyncio.Condition()
        self._saved_at = time.monotonic()

    async def join(
        self, contract: Contract | None, replica: Replica | None, head: Head | None
    ) -> tuple[Contract, bool]:
        """The handshake: the run's contract, and whether to take a snapshot. Raises Refused or LinkLost."""
        replica_step = replica.step if replica else None
        reply = await self._link.join(contract, self._state.node_id, self._habits.name, head, replica_step)
        theirs = parse_contract(reply.contract)
        if contract is None:
            check_manifest(theirs)
            self._state.write("contract.json", theirs.canonical())
        elif theirs.hash != contract.hash:
            raise Refused("the coordinator took our contract and then named another")
        return theirs, reply.take_snapshot

    async def fetch_corpus(self, contract: Contract) -> Corpus:
        """From the state directory, else from the coordinator."""
        corpus = await asyncio.to_thread(self._state.corpus, contract)
        if corpus is None:
            log.info("fetching the corpus of %s bytes", f"{contract.data.corpus_bytes:,}")
            packed = await self._link.corpus(contract)
            corpus = await asyncio.to_thread(unpack_corpus, packed, contract.data)
            self._state.write("corpus.zst", packed)
        return corpus

    async def fetch_snapshot(self, contract: Contract) -> Replica:
        """The coordinator's newest snapshot."""
        passing = self._state.path("snapshot.part")
        log.info("fetching a snapshot")
        await self._link.snapshot(passing, contract)
        replica = await asyncio.to_thread(load_replica, contract, passing)
        self._state.rename(passing, "replica.safetensors")
        log.info("snapshot of step %d, %s parameters", replica.step, f"{replica.layout.parameters:,}")
        return replica

    async def run(self, work: Work) -> None:
        """Follow and take part, until the run is complete or enough rounds are done. Raises LinkLost, Refused, or
        ReplicaError if the parameters are not the swarm's."""
        tasks = [asyncio.ensure_future(part) for part in (self._follow(work), self._listen(), self._take_part(work))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, work: Work) -> None:
        assert work.replica is not None
        async for sealed in self._link.updates(work.replica.step, work.replica.layout):
            await work.apply(sealed)
            if self._newest is None and work.replica.step % CATCH_UP_REPORT_STEPS == 0:
                log.info("catching up: step %d", work.replica.step)
            if time.monotonic() - self._saved_at > SAVE_INTERVAL_S:
                await work.save_replica()
                self._saved_at = time.monotonic()

    async def _listen(self) -> None:
        async for announcement in self._link.announcements():
            async with self._announced:
                self._newest = announcement
                self._announced.notify_all()

    async def _take_part(self, work: Work) -> None:
        await self._settle_pending(work)
        seen: Announcement | None = None
        said = ""
        while self._habits.rounds is None or self._record.counted < self._habits.rounds:
            async with self._announced:
                await self._announced.wait_for(lambda: self._newest is not seen)  # noqa: B023 - awaited at once
                seen = self._newest
            assert seen is not None
            await work.reached(seen.step)
            if seen.state == Announcement.STATE_ROUND:
                await self._round(work, seen)
            elif seen.state == Announcement.STATE_COMPLETE:
                self._record.complete = True
                return
            elif seen.text != said:
                log.info("%s", seen.text)
                said = seen.text

    async def _round(self, work: Work, announcement: Announcement) -> None:
        """Train on the lease until it is used up or the cut is due, then contribute."""
        train_until = time.monotonic() + self._record.cut.train_for_s(announcement.time_left_ms / 1000)
        lease, size = announcement.lease, self._habits.micro_batch
        for start in range(lease.start, lease.start + lease.count, size):
            positions = range(start, min(start + size, lease.start + lease.count))
            await work.run(work.trainer.micro_batch, positions)
            if self._newest is not announcement:
                return  # the round is over; the gradient waits for the next cut
            if time.monotonic() > train_until:
                break
        if work.trainer.samples == 0:
            await self._say_nothing(work, announcement)
            return
        cut_at = time.monotonic()
        contribution = await work.contribution(announcement.step, announcement.nonce, announcement.k)
        if contribution is not None:
            await self._contribute(work, announcement, contribution, cut_at)

    async def _contribute(
        self, work: Work, announcement: Announcement, contribution: Contribution, cut_at: float
    ) -> None:
        record = self._record
        record.dropped += contribution.dropped
        name = contribution_hash(
            work.contract.hash, announcement.epoch, announcement.round, self._state.node_id, contribution.payload
        )
        record.pending = Pending(name, contribution.sent)
        samples = min(contribution.samples, announcement.lease.count)
        header = ContributionHeader(
            epoch=announcement.epoch,
            round=announcement.round,
            step=contribution.step,
            fingerprint=contribution.fingerprint,
            samples=samples,
            loss=contribution.loss,
            dropped=contribution.dropped,
        )

        def sent() -> None:
            record.cut.measured(time.monotonic() - cut_at)

        receipt = await self._link.contribute(header, contribution.payload, sent)
        if receipt.outcome == Receipt.OUTCOME_COUNTED:
            record.tokens += samples * work.contract.model.context
            log.debug("round %d: counted, loss %.3f", announcement.round, contribution.loss)
        await self._settle(work, receipt)

    async def _say_nothing(self, work: Work, announcement: Announcement) -> None:
        """Nothing was trained (each micro-batch had to be dropped): say so, that nobody waits."""
        self._record.dropped += work.trainer.dropped
        header = ContributionHeader(
            epoch=announcement.epoch, round=announcement.round, step=announcement.step, dropped=work.trainer.dropped
        )
        log.warning("round %d: loss or gradient was not finite; nothing to contribute", announcement.round)
        await work.run(work.trainer.clear)
        await self._link.contribute(header, b"")

    async def _settle_pending(self, work: Work) -> None:
        """Ask for the receipt that a lost session left open."""
        if self._record.pending is not None:
            await self._settle(work, await self._link.ask_receipt(self._record.pending.hash))

    async def _settle(self, work: Work, receipt: Receipt) -> None:
        """Counted votes stay out of the momentum; the others go back into it."""
        record, pending = self._record, self._record.pending
        assert pending is not None
        if receipt.outcome == Receipt.OUTCOME_COUNTED:
            record.counted += 1
        else:
            record.not_counted += 1
            log.warning("not counted: %s", receipt.text)
            await work.run(work.trainer.demo.put_back, pending.sent)
        record.pending = None
        if receipt.reason == Receipt.REASON_REPLICA_DIFFERS:
            raise ReplicaError(receipt.text)
