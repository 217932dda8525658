"""The hall: what any run has in one term, whatever its exchange.

`open_hall` begins the term. A kind of exchange then makes its run in the hall: see `run.Run`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from thinwire_coordinator.hall.access.door import Admits, Denied, Door
from thinwire_coordinator.hall.access.settings import Pause
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import Events
from thinwire_coordinator.hall.leases import Leases
from thinwire_coordinator.hall.ledger.kept_replica import Copies
from thinwire_coordinator.hall.ledger.ledger import Term
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.members import Members
from thinwire_coordinator.hall.tasks import Tasks
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_proto.contract import Contract
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
