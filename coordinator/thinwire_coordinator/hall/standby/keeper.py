"""The coordinator's side of the stream to its standby: what is sent next, and what is on the standby's disk.

Rows go first, then leases, then the small tables, and then parts of a snapshot, so nothing that a round waits for
stands behind a large file. Without a standby, nothing here reads, writes or sends anything.

With `needed`, a step is sealed only when the standby has it, so no round begins while none follows. Nobody knows
whether it has a row that was on its way when the connection broke: it may be promoted meanwhile, and count it. So such
a round is neither counted nor void until a standby follows again, and says where it stands. The newest row at the start
of a process is such a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from thinwire_common.within import Within
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.standby.items import (
    SNAPSHOT_PART_BYTES,
    Position,
    TableReader,
    leases_item,
    pack,
    row_item,
    snapshot_item,
    terms_item,
)
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_proto.errors import LocalError
from thinwire_proto.limits import LOST_AFTER_S, ORDERS_READ_S

log = logging.getLogger("thinwire.coordinator")

AHEAD_MAX = 64
"""Items that are sent before the standby has said that the first of them is on its disk."""


class StandbyAway(LocalError):
    """No standby has all rows, so a step cannot be sealed after it. Nothing was written."""


IN_A_STORE = "the updates of this run are in a store, which both would write; a standby needs them in a folder"


class Keeper:
    """A coordinator's knowledge of its standby. needed: whether a step is sealed only when the standby has it. now:
    seconds on a monotonic clock. address: HOST:PORT of the newest standby, for nodes; empty: none has followed."""

    def __init__(self, state: RunState, workers: Workers, now: Callable[[], float], *, needed: bool = False) -> None:
        self._state = state
        self._workers = workers
        self.now = now
        self.needed = needed
        self.address = ""
        self.superseded = False
        """Whether another machine was promoted, so that nothing may be sealed here any more."""
        self.step = state.ledger.step
        self.leases = 0
        """How often leases were written."""
        self.following: Following | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when rounds may no longer begin, or may begin again, and when nodes should hear of another address."""
        self._in_doubt = self._starting = needed and self.step > 0
        self._slow = ""  # what a row waits for, once that takes long
        self._told = (bool(self.holds()), self.address)
        self._changed = asyncio.Event()

    @property
    def withheld(self) -> str:
        """Why nodes must wait after a start, in words: the newest row may be missing on the standby. Empty: they need
        not."""
        if not self._starting:
            return ""
        return "the coordinator waits for its standby, because steps are sealed only when the standby has them"

    def why_away(self) -> str:
        """Why a step cannot be sealed now, in words; empty if it can."""
        if self.superseded:
            return "another machine was promoted to be the coordinator"
        if not self.needed or (self.following is not None and self.following.synced_step == self.step):
            return ""
        if self.following is None:
            return "no standby follows, and steps are sealed only when it has them"
        lacks = self.step - self.following.synced_step
        return f"the standby lacks {lacks} of {self.step} steps, and steps are sealed only when it has them"

    def holds(self) -> str:
        """Why no round may begin now, in words; empty if it may. A row that is on its way is no reason."""
        if self.withheld or self._slow:
            return self.withheld or self._slow
        return "" if self._in_doubt and self.following is not None else self.why_away()

    def in_words(self) -> str:
        """The state of the standby, in words; empty if there never was one, and none is needed."""
        if (one := self.following) is None:
            last = f"; the last one was at {self.address}" if self.address else ""
            return f"none follows{last}" if last or self.needed else ""
        lacks = self.step - one.synced_step
        has = f"lacks {lacks} of {self.step} steps" if lacks else f"has all {self.step} steps"
        return f"{self.address or 'one'} follows, {has}, and the snapshot of step {one.snapshot_step}"

    def other_than(self, position: Position) -> str:
        """Why this standby must wait, in words: another one follows. Empty: there is none."""
        if self.following is None or self.following.process == position.process:
            return ""
        at = f" at {self.address}" if self.address else ""
        return f"another standby{at} follows, and a coordinator has one; this one waits until that one is gone"

    async def why_not(self, position: Position) -> str:
        """Why a standby that stands there cannot follow, in words; empty if it can."""
        return await self._workers.submit(Job.READ_ROW, self._why_not, position)

    def _why_not(self, position: Position) -> str:
        step, ledger = position.step, self._state.reading_ledger
        if step > ledger.step:
            return (
                f"the standby has {step} rows, and this coordinator has {ledger.step}: its ledger has lost rows; stop "
                "it, and promote the standby"
            )
        anew = "make a new backup, restore it into an empty --state-dir, and follow with that"
        if step and ledger.row(step - 1).hash != position.head:
            return f"the standby's row of step {step - 1} is another one than this coordinator's; {anew}"
        if step < (oldest := self._state.snapshot_steps()[0]):
            return f"the standby is at step {step}, and the oldest update kept here is that of step {oldest}; {anew}"
        if self._state.bodies.folder is None:
            return IN_A_STORE
        return ""

    def begin(self, position: Position) -> Following:
        """A standby follows from now on, in place of an earlier stream to it."""
        if self.following is not None:
            self.following.end()
        self.following = following = Following(self, self._state, self._workers, position)
        self.address = position.address or self.address
        log.info("%s", f"a standby follows from step {position.step} of {self.step}")
        self.look()
        return following

    def ended(self, following: Following) -> None:
        following.end()
        if self.following is following:
            self.following = None
            log.warning("%s", f"the standby follows no longer; it has {following.synced_step} of {self.step} steps")
        self.look()

    def sealed(self, step: int) -> None:
        """So many rows are in the ledger."""
        self.step = step
        self._wake()

    def granted(self) -> None:
        """The leases, or amendments that have begun, were written to the ledger."""
        self.leases += 1
        self._wake()

    async def has_row(self) -> None:
        """Wait until the standby has all rows, if that is needed."""
        if not self.needed and not self.superseded:
            return
        self._in_doubt = True
        while self._in_doubt:
            try:
                async with Within(LOST_AFTER_S):
                    while self._in_doubt:
                        await self._changed.wait()
            except asyncio.TimeoutError:
                self._slow = f"step {self.step - 1} waits for the standby, which may have it and may not"
                hint = "if the standby is gone for good, restart this coordinator without --seal-after-standby"
                log.warning("%s; %s", self._slow, hint)

    async def has_leases(self) -> None:
        """Wait until the standby has the leases, if that is needed; but no longer than it follows."""
        version = self.leases
        while self.needed and (one := self.following) is not None and one.synced_leases < version:
            try:
                async with Within(LOST_AFTER_S):
                    await self._changed.wait()
            except asyncio.TimeoutError:
                log.warning("no round is announced: the standby follows, but has not written the newest leases yet")

    def _wake(self) -> None:
        if self.following is not None:
            self.following.wake.set()

    def look(self) -> None:
        """The standby has more on its disk, or has come or gone: look whether what somebody waits for is there."""
        if self._in_doubt and not self.why_away():
            self._in_doubt = self._starting = False
            self._slow = ""
        self._changed.set()
        self._changed = asyncio.Event()
        if self._told != (told := (bool(self.holds()), self.address)):
            self._told = told
            self.on_change()


class Following:
    """One stream to a standby."""

    def __init__(self, keeper: Keeper, state: RunState, workers: Workers, position: Position) -> None:
        self._keeper = keeper
        self._state = state
        self._workers = workers
        self._sent_step = self.synced_step = position.step
        self._sent_leases = self.synced_leases = -1
        self._tables = TableReader(state.folder)
        self._tables_at = 0.0
        self.process = position.process
        self.snapshot_step = position.snapshot
        """The step of the newest snapshot that was sent whole."""
        self._snapshot = (position.begun, position.begun_bytes)
        self._sent_terms = False
        self._under_way: deque[tuple[int, int]] = deque()  # rows and leases that the standby has after each item
        self._synced = 0
        self._ended = False
        self.wake = asyncio.Event()

    def end(self) -> None:
        self._ended = True
        self.wake.set()

    def synced(self, count: int) -> None:
        """So many items of this stream are on the standby's disk."""
        while self._synced < count and self._under_way:
            self._synced += 1
            self.synced_step, self.synced_leases = self._under_way.popleft()
        self.wake.set()
        if self._keeper.following is self:
            self._keeper.look()

    async def items(self) -> AsyncIterator[bytes]:
        """Items until the stream ends. Raises LedgerError or OSError."""
        try:
            while not self._ended:
                self.wake.clear()
                item = await self._next() if len(self._under_way) < AHEAD_MAX else None
                if item is not None:
                    self._under_way.append((self._sent_step, self._sent_leases))
                    yield item
                elif not self._ended:
                    with suppress(asyncio.TimeoutError):
                        async with Within(ORDERS_READ_S):
                            await self.wake.wait()
        finally:
            # behind a read that goes on although nobody waits for it any more: SQLite does not survive the opposite
            with suppress(RuntimeError):  # the workers are closed, and so is the process
                self._workers.submit(Job.READ_STATUS, self._tables.close)

    async def _next(self) -> bytes | None:
        keeper, state = self._keeper, self._state
        if not self._sent_terms:
            self._sent_terms = True
            return await self._read(lambda: terms_item(state.fetch_ledger))
        if self._sent_step < keeper.step:
            step, leases = self._sent_step, keeper.leases
            is_newest = step + 1 == keeper.step
            item = await self._read(lambda: row_item(state, state.fetch_ledger, step, is_newest=is_newest))
            self._sent_step += 1
            if is_newest:
                self._sent_leases = leases
            return item
        if self._sent_leases < keeper.leases or self._sent_leases < 0:
            leases = keeper.leases
            item = await self._read(lambda: leases_item(state.fetch_ledger))
            self._sent_leases = leases
            return item
        if keeper.now() >= self._tables_at:
            self._tables_at = keeper.now() + ORDERS_READ_S
            if changes := await self._workers.submit(Job.READ_STATUS, self._tables.changes):
                return pack({"tables": changes})
        return await self._next_of_snapshot()

    async def _next_of_snapshot(self) -> bytes | None:
        step = self._state.snapshot_steps()[-1]
        if step <= self.snapshot_step or step > self._sent_step:
            return None
        begun, offset = self._snapshot
        offset = offset if begun == step else 0
        path = self._state.snapshot_path(step)
        try:
            size = path.stat().st_size
            item = await self._read(lambda: snapshot_item(path, step, offset))
        except FileNotFoundError:  # it was deleted for age
            return None
        end = min(size, offset + SNAPSHOT_PART_BYTES)
        self._snapshot = step, end
        if end == size:
            self.snapshot_step = step
        return item

    def _read(self, read: Callable[[], bytes]) -> asyncio.Future[bytes]:
        return self._workers.submit(Job.READ_UPDATE, read)
