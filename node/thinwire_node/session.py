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
from thinwire_node.link import Link, LinkLost, Refused
from thinwire_node.state import NodeState
from thinwire_node.work import Contribution, Work
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.corpus import Corpus, unpack_corpus
from thinwire_proto.errors import ReplicaError
from thinwire_proto.models import check_manifest
from thinwire_proto.replica import Replica, load_replica
from thinwire_proto.service_pb2 import Announcement, ContributionHeader, Receipt

log = logging.getLogger("thinwire.node")

SAVE_INTERVAL_S = 60.0
CATCH_UP_REPORT_STEPS = 100


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
        self._head_step = 0
        self._newest: Announcement | None = None
        self._newest_at = 0.0
        self._announced = asyncio.Condition()
        self._saved_at = time.monotonic()

    async def join(self, contract: Contract | None, replica: Replica | None) -> tuple[Contract, bool]:
        """The handshake: the run's contract, and whether to take a snapshot. Raises Refused or LinkLost."""
        replica_step = replica.step if replica else None
        state = self._state
        reply = await self._link.join(contract, state.node_id, self._habits.name, state.head, replica_step)
        self._head_step = reply.step
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
        taking_part = asyncio.ensure_future(self._take_part(work))
        tasks = [asyncio.ensure_future(self._follow(work)), asyncio.ensure_future(self._listen(work)), taking_part]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if taking_part not in done:
                raise LinkLost("the coordinator ended the session")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await work.finish_jobs()

    async def _follow(self, work: Work) -> None:
        assert work.replica is not None
        async for sealed in self._link.updates(work.replica.step, work.replica.layout):
            await work.apply(sealed)
            step = work.replica.step
            if step < self._head_step and step % CATCH_UP_REPORT_STEPS == 0:
                log.info("catching up: step %d of %d", step, self._head_step)
            if time.monotonic() - self._saved_at > SAVE_INTERVAL_S:
                await work.save_replica()
                self._saved_at = time.monotonic()

    async def _listen(self, work: Work) -> None:
        await work.reached(self._head_step)  # who attends is waited for, so catch up first
        async for announcement in self._link.announcements():
            async with self._announced:
                self._newest = announcement
                self._newest_at = time.monotonic()
                self._announced.notify_all()

    async def _take_part(self, work: Work) -> None:
        if work.pending is not None:  # a lost session, or the life before, left its receipt open
            await self._settle(work, await self._link.ask_receipt(work.pending.hash))
        seen: Announcement | None = None
        said = ""
        while self._habits.rounds is None or self._record.counted < self._habits.rounds:
            async with self._announced:
                await self._announced.wait_for(lambda: self._newest is not seen)  # noqa: B023 - awaited at once
                seen, seen_at = self._newest, self._newest_at
            assert seen is not None
            await work.reached(seen.step)
            if seen.state == Announcement.STATE_ROUND:
                await self._round(work, seen, seen_at)
            elif seen.state == Announcement.STATE_COMPLETE:
                log.info("the run is complete")
                return
            elif seen.text != said:
                log.info("%s", seen.text)
                said = seen.text

    async def _round(self, work: Work, announcement: Announcement, announced_at: float) -> None:
        """Train on the lease until it is used up or the cut is due, then contribute."""
        if work.trainer.samples == 0:
            train_until = announced_at + self._record.cut.train_for_s(announcement.time_left_ms / 1000)
            await self._train(work, announcement, train_until)
        # else the round before was over too soon for us: say at once what there is, or we might never be in time
        if self._newest is not announcement:
            return  # overtaken; the gradient waits for the next cut
        if work.trainer.samples == 0:
            await self._say_nothing(work, announcement)
            return
        cut_at = time.monotonic()
        contribution = await work.contribution(announcement)
        if contribution is not None:
            await self._contribute(work, announcement, contribution, cut_at)

    async def _train(self, work: Work, announcement: Announcement, train_until: float) -> None:
        lease, size = announcement.lease, self._habits.micro_batch
        end = lease.start + lease.count
        for start in range(max(lease.start, work.trained_to), end, size):
            began = time.monotonic()
            await work.train(range(start, min(start + size, end)))
            now = time.monotonic()
            if self._newest is not announcement or now + (now - began) > train_until:
                return

    async def _contribute(
        self, work: Work, announcement: Announcement, contribution: Contribution, cut_at: float
    ) -> None:
        record = self._record
        if contribution.dropped:
            record.dropped += contribution.dropped
            log.warning("%d micro-batches dropped: loss or gradient was not finite", contribution.dropped)
        samples = min(contribution.samples, announcement.lease.count)
        header = ContributionHeader(
            epoch=announcement.epoch,
            round=announcement.round,
            step=contribution.step,
            fingerprint=contribution.fingerprint,
            samples=samples,
            loss=contribution.loss,
            dropped=contribution.dropped,
            compute_ms=work.compute_ms(),
        )

        def sent() -> None:
            record.cut.measured(time.monotonic() - cut_at)

        receipt = await self._link.contribute(header, contribution.payload, sent)
        if receipt.outcome == Receipt.OUTCOME_COUNTED:
            record.tokens += samples * work.contract.model.context
            log.debug("round %d: counted, loss %.3f", announcement.round, contribution.loss)
        await self._settle(work, receipt)

    async def _say_nothing(self, work: Work, announcement: Announcement) -> None:
        """Nothing was trained: say so, that nobody waits."""
        dropped = work.trainer.dropped
        self._record.dropped += dropped
        if dropped:
            log.warning("round %d: loss or gradient was not finite; nothing to contribute", announcement.round)
        await work.run(work.trainer.clear)
        header = ContributionHeader(
            epoch=announcement.epoch, round=announcement.round, step=announcement.step, dropped=dropped
        )
        await self._link.contribute(header, b"")

    async def _settle(self, work: Work, receipt: Receipt) -> None:
        counted = receipt.outcome == Receipt.OUTCOME_COUNTED
        await work.settle(counted)  # first: should this be cancelled, the receipt is asked for again
        if counted:
            self._record.counted += 1
        else:
            self._record.not_counted += 1
            log.warning("not counted: %s", receipt.text)
        if receipt.reason == Receipt.REASON_REPLICA_DIFFERS:
            raise ReplicaError(receipt.text)
