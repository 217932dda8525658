"""The hall: what any run has in one term, whatever its exchange.

`open_hall` begins the term. A kind of exchange then makes its run in the hall: see `run.Run`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from thinwire_coordinator.hall.access.door import Admits, Denied, Door
from thinwire_coordinator.hall.access.settings import Pause
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import Events
from thinwire_coordinator.hall.leases import Leases
from thinwire_coordinator.hall.ledger.kept_replica import Copies
from thinwire_coordinator.hall.ledger.ledger import Term
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.members import Members
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ThinwireError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.identity.terms import NO_PROMOTION, ProvenTerm, prove_term

NONCE_BITS = 64


@dataclass(frozen=True)
class Surroundings:
    """Clocks and chance; the simulator has its own.

    now: the coordinator's clock, in seconds. wall: seconds since 1970. randomness: source of nonces and session names.
    """

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    randomness: random.Random = field(default_factory=random.SystemRandom)


@dataclass
class Hall:
    """replica: the coordinator's own. sealed: set when a row is sealed, for upkeep. Times are on the coordinator's
    clock, in seconds. began: this process. sealed_at: the newest row; before the first one, `began`. measured_step:
    the newest step whose held-out losses were measured, finite or not. pause: the one that holds now."""

    state: RunState
    replica: Replica
    term: Term
    workers: Workers
    surroundings: Surroundings
    members: Members
    leases: Leases
    counts: Counts
    events: Events
    tasks: Tasks
    copies: Copies
    began: float
    sealed_at: float
    sealed: asyncio.Event = field(default_factory=asyncio.Event)
    measured_step: int = 0
    pause: Pause | None = None
    proven: ProvenTerm = NO_PROMOTION
    """The term, if there was a promotion before it."""

    @property
    def contract(self) -> Contract:
        return self.state.contract

    @property
    def layout(self) -> TileLayout:
        return self.replica.layout

    @property
    def randomness(self) -> random.Random:
        return self.surroundings.randomness

    def nonce(self) -> int:
        """A new nonce for a fingerprint, 0 … 2⁶⁴ − 1."""
        return self.randomness.getrandbits(NONCE_BITS)

    def now(self) -> float:
        """The coordinator's clock, in seconds."""
        return self.surroundings.now()

    def now_us(self) -> int:
        """The same in microseconds."""
        return round(self.surroundings.now() * 1e6)

    async def has_counted(self, node_id: str) -> bool:
        """Whether a contribution of a node was ever counted, in this process or an earlier one."""
        key_of = self.state.reading_ledger.signatures.key_of
        return await self.workers.submit(Job.FIND_CONTRIBUTOR, key_of, node_id) is not None

    def door(self, admits: Admits, randomness: random.Random | None = None) -> Door:
        """The door of the run. admits: decides who may join. randomness: source of challenges."""
        assert self.state.secret_key is not None

        def run(admit: Callable[[], Denied | None]) -> Awaitable[Denied | None]:
            return self.workers.submit(Job.ADMIT_NODE, admit)

        return Door(self.state.secret_key, admits, self.now, run, randomness or random.SystemRandom())


def open_hall(
    state: RunState,
    replica: Replica,
    workers: Workers,
    surroundings: Surroundings | None = None,
    least_term: int = 0,
) -> Hall:
    """Begin a new term on an open state directory. Needs a running event loop. The state's key signs the rows.

    replica: the coordinator's own, at the head of the ledger. surroundings: by default, those of this machine.
    least_term: the first one after the promotion of this machine.
    """
    surroundings = surroundings or Surroundings()
    term, leases, counts = state.ledger.begin_term(least_term), state.ledger.leases(), Counts(replica.layout.parameters)
    leases.block = state.data.block
    began = surroundings.now()
    return Hall(
        state=state,
        replica=replica,
        term=term,
        workers=workers,
        surroundings=surroundings,
        members=Members(state.contract.round.nodes_max, surroundings.randomness),
        leases=leases,
        counts=counts,
        events=Events([counts.watch]),
        tasks=Tasks(),
        copies=Copies(state.folder, replica, workers),
        began=began,
        sealed_at=began,
        proven=prove_term(state.key, state.contract.hash, term.number),
    )


log = logging.getLogger("thinwire.coordinator")


class Tasks:
    """Runs background work and keeps its first exception."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the first exception, unless it comes after `log_failures`."""
        self._running: set[asyncio.Task[None]] = set()
        self._timed: set[asyncio.Task[None]] = set()
        self._sealing: set[asyncio.Task[None]] = set()
        self._logs_failures = False
        self.failed_late: OSError | ThinwireError | None = None
        """The first OSError or ThinwireError after `log_failures`. Other errors are bugs, and are only logged."""

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task and hold a reference to it, because the event loop holds only a weak one."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        self.must_succeed(task)
        return task

    def log_failures(self) -> None:
        """From now on, nobody looks at `failed`: the process ends. Failures are logged; see also `failed_late`."""
        self._logs_failures = True

    def stop(self) -> None:
        """Cancel what waits for a time, at the end of the process."""
        for task in self._timed:
            task.cancel()

    def seal(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Like `keep`, for work that writes a row of the ledger and then tells all who watch. `settle` waits for it."""
        task = self.keep(work)
        self._sealing.add(task)
        task.add_done_callback(self._sealing.discard)
        return task

    async def settle(self, within_s: float) -> None:
        """Wait for the rows that are being sealed, but not for longer."""
        if self._sealing:
            await asyncio.wait(self._sealing, timeout=within_s)

    def end(self) -> None:
        """Cancel what `settle` did not wait for: it could not go on without the workers."""
        for task in self._sealing:
            task.cancel()

    def keep_timed(self, work: Coroutine[Any, Any, None]) -> None:
        """Like `keep`, for work that goes on until `stop`."""
        task = asyncio.get_running_loop().create_task(work)
        self._timed.add(task)
        task.add_done_callback(self._timed.discard)
        self.must_succeed(task)

    def must_succeed(self, work: asyncio.Future[None]) -> None:
        work.add_done_callback(self._look)

    def fail(self, error: BaseException) -> None:
        if self._logs_failures:
            text = "failed while the coordinator stops: %s"
            if not isinstance(error, ThinwireError | OSError):
                log.error(text, repr(error), exc_info=error)
            elif str(error) not in (str(self.failed_late), str(self._why_failed())):  # a full disk fails several tasks
                self.failed_late = self.failed_late or error
                log.error(text, error)
        elif not self.failed.done():
            self.failed.set_exception(error)

    def _why_failed(self) -> BaseException | None:
        return self.failed.exception() if self.failed.done() and not self.failed.cancelled() else None

    def _look(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.fail(error)
