"""One life of a node: startup, main loop, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import torch

from thinwire_node.device import choose_apply_device, choose_device
from thinwire_node.link import Link, LinkLost
from thinwire_node.session import Habits, Record, Session
from thinwire_node.state import Head, NodeState
from thinwire_node.trainer import Interrupted
from thinwire_node.work import Work
from thinwire_proto.contract import Contract
from thinwire_proto.corpus import Corpus
from thinwire_proto.errors import LocalError, PayloadError, ReplicaError, ThinwireError
from thinwire_proto.replica import Replica

log = logging.getLogger("thinwire.node")

OUT_OF_MEMORY = re.compile("out of memory|can.t allocate memory", re.IGNORECASE)
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 10.0
RESYNCS_IN_VAIN_MAX = 5
RECEIPT_WAIT_S = 2.0
"""How long a leaving node waits for the receipt that is still out."""


@dataclass(frozen=True)
class Settings:
    """What one node process is told."""

    address: str
    state_dir: Path
    device: str
    habits: Habits
    give_up_after_s: float | None


class GaveUp(LocalError):
    """No coordinator was there for as long as the volunteer was willing to wait."""


class Node:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.record = Record()
        self.work: Work | None = None
        self._state: NodeState | None = None
        self._replica: Replica | None = None  # from disk, or fetched; not adopted yet
        self._resyncs_in_vain = 0
        self._joined = False
        self._contract: Contract | None = None
        self._corpus: Corpus | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Take part until `stop` is set, the run is complete, or enough rounds are done. Raises ThinwireError."""
        try:
            try:
                self._startup()
                await self._main_loop(stop)
            finally:
                await self._shutdown()
        except OSError as error:
            raise LocalError(f"{self._settings.state_dir}: the disk fails: {error}") from None
        except RuntimeError as error:  # what CUDA, MPS and the CPU raise has nothing else in common
            if not OUT_OF_MEMORY.search(str(error)):
                raise
            reason = str(error).splitlines()[0]
            raise LocalError(f"{self._device} has too little memory ({reason}); give a smaller --micro-batch") from None

    def _startup(self) -> None:
        self._device, why = choose_device(self._settings.device)
        if why:
            log.warning("%s", why)
        self._state = NodeState(self._settings.state_dir)
        self._contract = self._state.contract()
        if self._contract is not None:
            self._replica = self._state.replica(self._contract)

    async def _main_loop(self, stop: asyncio.Event) -> None:
        """Sessions, one after the other: a lost one is followed by the next, after a pause."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            async for _ in self._attempts(stop):
                session = asyncio.ensure_future(self._session())
                await asyncio.wait({session, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    await self._end(session)
                    return
                try:
                    await session
                    return
                except (LinkLost, PayloadError) as error:
                    what = "the session ended" if self._joined else f"no coordinator at {self._settings.address}"
                    log.warning("%s: %s", what, error)
                except ReplicaError as error:
                    self._resync(error)
        finally:
            stopped.cancel()

    async def _attempts(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Yields when it is time to try; pauses longer from try to try while nothing comes of it. Raises GaveUp."""
        pause_s = BACKOFF_FIRST_S
        patience_s = self._settings.give_up_after_s
        self._last_contact = time.monotonic()
        progress = self._progress()
        while True:
            yield
            if self._progress() != progress:
                progress, pause_s = self._progress(), BACKOFF_FIRST_S
                self._resyncs_in_vain = 0
            alone_s = time.monotonic() - self._last_contact
            if patience_s is not None and alone_s + pause_s > patience_s:
                raise GaveUp(
                    f"no coordinator at {self._settings.address} for {patience_s:g} s (--give-up-after): "
                    "check the address, and that it runs"
                )
            log.info("trying again in %.1f s", pause_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s * random.uniform(0.8, 1.2))
                return
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    def _progress(self) -> tuple[int, Head | None]:
        """What changes when a session comes to something: contributions counted, and the newest update applied."""
        return self.record.counted, self._state.head if self._state else None

    async def _session(self) -> None:
        assert self._state is not None
        link = Link(self._settings.address)
        self._joined = False
        try:
            session = Session(link, self._state, self.record, self._settings.habits)
            held = self.work.replica if self.work and self.work.replica else self._replica
            self._contract, take_snapshot = await session.join(self._contract, held)
            self._joined = True
            log.info("joined at %s as %s", self._settings.address, self._settings.habits.name)
            if self._corpus is None:
                self._corpus = await session.fetch_corpus(self._contract)
            if take_snapshot or held is None:
                held = await session.fetch_snapshot(self._contract)
            await self._adopt(held)
            assert self.work is not None
            await session.run(self.work)
        finally:
            if self._joined:
                self._last_contact = time.monotonic()
            self.record.bytes_up += link.bytes_up
            self.record.bytes_down += link.bytes_down
            await link.close()

    async def _adopt(self, replica: Replica) -> None:
        assert self._contract is not None
        assert self._corpus is not None
        assert self._state is not None
        if self.work is None:
            apply_device, why = choose_apply_device(self._contract.demo.transform, self._device)
            log.info("%s", why)
            log.info("training on %s with %d threads", self._device, torch.get_num_threads())
            work = Work(self._contract, self._state, self._device, apply_device)
            await work.adopt(replica, self._corpus)
            self.work = work
            kept_at = await work.resume_momentum()
            if kept_at is not None:
                log.info("momentum of step %d taken up", kept_at)
        elif replica is not self.work.replica:
            await self.work.adopt(replica, self._corpus)
        self._replica = None

    def _resync(self, error: ReplicaError) -> None:
        """The parameters are not the swarm's: fetch them anew."""
        log.warning("%s; resyncing", error)
        self.record.resyncs += 1
        self._resyncs_in_vain += 1
        if self._resyncs_in_vain > RESYNCS_IN_VAIN_MAX:
            raise LocalError(
                f"the parameters differ again and again, {self._resyncs_in_vain} times without an update in between: "
                "this machine's memory, disk or device may be faulty; try --device cpu"
            )
        self._replica = None
        if self.work is not None:
            self.work.replica = None

    async def _end(self, session: asyncio.Future[None]) -> None:
        """Stop a session that runs; a receipt that is out is waited for, for a while."""
        deadline = time.monotonic() + RECEIPT_WAIT_S
        while self.work and self.work.pending and not session.done() and time.monotonic() < deadline:
            await asyncio.wait({session}, timeout=0.05)
        if self.work is not None:
            self.work.interrupt()
        session.cancel()
        with contextlib.suppress(asyncio.CancelledError, ThinwireError, Interrupted):
            await session

    async def _shutdown(self) -> None:
        try:
            if self.work is not None:
                await self._leave(self.work)
        finally:
            if self.work is not None:
                self.work.close()
            if self._state is not None:
                self._state.close()
            record = self.record
            log.info(
                "counted %d times, not counted %d times, %d micro-batches dropped, %d resyncs, "
                "%s tokens, %s bytes up, %s bytes down",
                record.counted,
                record.not_counted,
                record.dropped,
                record.resyncs,
                *(f"{number:,}" for number in (record.tokens, record.bytes_up, record.bytes_down)),
            )

    async def _leave(self, work: Work) -> None:
        await work.finish_jobs()
        try:
            await work.save_momentum()
        finally:
            await work.save_replica()
        if work.replica is not None:
            log.info("left at step %d, fingerprint %016x", work.replica.step, work.replica.fingerprint(0))
