"""Builds a swarm from its parts, for the daemon, the simulator, the benchmarks and the tests."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from thinwire_coordinator.hall.access.door import Admits, Door
from thinwire_coordinator.hall.access.refusals import Denied
from thinwire_coordinator.hall.copies import Copies
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import Events
from thinwire_coordinator.hall.ledger.retention import NotKept
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.members import Members
from thinwire_coordinator.hall.registry import Registry
from thinwire_coordinator.hall.shared import Shared
from thinwire_coordinator.hall.swarm import Swarm
from thinwire_coordinator.hall.tasks import Tasks
from thinwire_coordinator.hall.view import SwarmView
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_coordinator.star.announcer import Announcer
from thinwire_coordinator.star.evaluations import Evaluations
from thinwire_coordinator.star.feed import CACHE_BYTES_MAX, EncodedUpdate, EncodeUpdate, Feed
from thinwire_coordinator.star.fingerprints import KnownFingerprints
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.round.machine import RoundMachine
from thinwire_coordinator.star.rounds import Rounds
from thinwire_coordinator.star.trust.observer import NO_AUDITS, Observer, TrustSettings
from thinwire_proto.errors import LedgerError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire.codec import update_bytes_max

ReadUpdate = Callable[[int], EncodedUpdate]


@dataclass(frozen=True)
class UpdateSource:
    """The source of the messages that followers are sent.

    encode: makes them. read: reads an old update on a worker; None: from the state directory. cache_bytes_max: see
    `Feed`.
    """

    encode: EncodeUpdate
    read: ReadUpdate | None = None
    cache_bytes_max: int = CACHE_BYTES_MAX


@dataclass(frozen=True)
class Surroundings:
    """Clocks and chance; the simulator has its own.

    now: the coordinator's clock, in seconds. wall: seconds since 1970. randomness: source of nonces and session names.
    """

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    randomness: random.Random = field(default_factory=random.SystemRandom)


def assemble(
    state: RunState,
    replica: Replica,
    workers: Workers,
    source: UpdateSource,
    wait_for: int = 1,
    *,
    trust: TrustSettings = NO_AUDITS,
    surroundings: Surroundings | None = None,
) -> Swarm:
    """Begin a new term on an open state directory. Needs a running event loop. The state's key signs the rows.

    replica: the coordinator's own replica, at the head of the ledger. source: of the messages that followers are sent.
    wait_for: nodes to wait for before the first round. trust: see `TrustSettings`. surroundings: by default, those of
    this machine.
    """
    surroundings = surroundings or Surroundings()
    contract, now, randomness = state.contract, surroundings.now, surroundings.randomness
    term = state.ledger.begin_term()
    leases = state.ledger.leases()
    leases.block = state.data.block
    counts = Counts(replica.layout.parameters)
    registry = Registry(
        Members(contract.round.nodes_max, randomness),
        leases,
        KnownFingerprints(contract.round.base_age_max),
        counts,
        Events([counts.watch]),
        began=now(),
        sealed_at=now(),
    )
    read = source.read or (lambda step: read_encoded(state, step, source.encode))

    async def read_old(step: int) -> EncodedUpdate:
        return await workers.submit(Job.READ_UPDATE, read, step)

    machine = RoundMachine(contract.round, contract.schedule.steps, term.first_round, replica.step, wait_for)
    shared = Shared(
        state=state,
        layout=replica.layout,
        term=term,
        registry=registry,
        driver=RoundDriver(machine, now),
        feed=Feed(
            read_old,
            replica.step,
            source.cache_bytes_max,
            update_bytes_max(replica.layout, contract.demo.magnitude, contract.demo.update_levels),
        ),
        encode=source.encode,
        workers=workers,
        tasks=Tasks(),
    )
    _know_older_bases(shared)
    copies = Copies(state.folder, replica, workers)
    observer = Observer(shared, copies, trust, surroundings.wall)
    view, intake = SwarmView(shared), Intake(shared, observer)
    evaluations = Evaluations(shared, copies, observer, randomness)
    announcer = Announcer(shared, view, intake, evaluations)
    evaluations.announce = announcer.announce_again
    rounds = Rounds(shared, replica, intake, announcer, evaluations, observer, randomness)
    shared.driver.start(rounds.handle)
    return Swarm(shared, replica, copies, view, intake, announcer, rounds, evaluations, observer)


def door_of(swarm: Swarm, key: SecretKey, admits: Admits, randomness: random.Random | None = None) -> Door:
    """The door of a swarm. key: the coordinator's. admits: decides who may join. randomness: source of challenges."""

    def run(admit: Callable[[], Denied | None]) -> Awaitable[Denied | None]:
        return swarm.workers.submit(Job.ADMIT_NODE, admit)

    return Door(key, admits, swarm.driver.now, run, randomness or random.SystemRandom())


def read_encoded(state: RunState, step: int, encode: EncodeUpdate) -> EncodedUpdate:
    """Read a sealed update from disk. Raises NotKept if it was deleted for age, LedgerError if it cannot be read."""
    row = state.fetch_ledger.row(step)
    try:
        signature = state.fetch_ledger.signatures.of_row(step) or b""
        return encode(step, row.canonical(), state.bodies.get(row.body_hash, row.body_bytes), signature)
    except LedgerError:
        oldest = state.snapshot_steps()[0]
        if step >= oldest:
            raise
        text = f"step {step}: the oldest update kept is that of step {oldest}; join again and take a snapshot"
        raise NotKept(text, step) from None


def _know_older_bases(shared: Shared) -> None:
    """After a restart, restore from the rows the fingerprints of the bases that nodes may still use."""
    head = shared.feed.step
    for row in shared.state.ledger.rows(max(0, head - shared.contract.round.base_age_max), head):
        known = asyncio.get_running_loop().create_future()
        known.set_result(row.fingerprint)
        shared.registry.fingerprints.know(row.step, row.nonce, known)
