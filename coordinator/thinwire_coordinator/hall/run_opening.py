"""Opens the run of a state directory: creates it if there is none, checks the settings against it, replays it.

Each part runs on a worker. A coordinator that is told to stop meanwhile stops before the next part, or within a long
one. The next start redoes an unfinished creation of a run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from thinwire_coordinator.hall.access.settings import AmendmentOrders
from thinwire_coordinator.hall.capacity import Need, check_disks, measure
from thinwire_coordinator.hall.kind import Kind
from thinwire_coordinator.hall.ledger.checks import check_complete
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.state_directory import (
    RunState,
    StartInterrupted,
    check_bodies,
    check_run,
    is_state,
    open_state,
)
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_proto import limits
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import ConfigError, Locked
from thinwire_proto.exact.replica import Replica

log = logging.getLogger("thinwire.coordinator")

Result = TypeVar("Result")


class StartWorker:
    """Runs the parts of a startup on a worker until told to stop."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._told_to_stop = threading.Event()

    def stop(self) -> None:
        self._told_to_stop.set()

    def go_on(self) -> None:
        """Raise StartInterrupted if told to stop. Any thread may call this."""
        if self._told_to_stop.is_set():
            raise StartInterrupted

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run one part. Raises StartInterrupted if told to stop before or meanwhile.

        Waits LOCKED_START_S if another program holds the lock of a database that it needs."""
        loop = asyncio.get_running_loop()
        until: float | None = None
        while True:
            self.go_on()
            try:
                result = await self._workers.submit(Job.START, work, *arguments)
            except Locked as error:
                if until is None:
                    until = loop.time() + limits.LOCKED_START_S
                    log.warning("waiting for a lock: %s", error)
                if loop.time() > until:
                    raise
                await asyncio.sleep(limits.LOCKED_AGAIN_S)
            else:
                self.go_on()
                return result


@dataclass(frozen=True)
class ReplayedRun:
    """A run at the head of its ledger.

    needs: how much each disk needs; measure_disks: measures it again. losses: step and value of the newest loss on each
    held-out set.
    """

    replica: Replica
    retention: Retention
    needs: list[Need]
    measure_disks: Callable[[], list[Need]]
    losses: Mapping[str, tuple[int, float]]


async def open_run(
    settings: CoordinatorSettings, orders: AmendmentOrders, worker: StartWorker, readiness: Readiness
) -> RunState:
    """Open the run, or create it first. Raises LedgerError, and ConfigError as far as the files are concerned."""
    folder = settings.state_dir
    if not is_state(folder):
        readiness.text = "creating the corpus and the first state"
        text = f"new run in {folder}: creating its corpus and its first state"
        log.info("%s", text)
        run, planned = settings.run or RunSpec(), settings.planned
        await worker.run(orders.plan, planned)
        await worker.run(partial(create_state, folder, run, settings.bodies, worker.go_on, planned=planned))
    state = await worker.run(open_state, folder)
    check_settings(state, settings)
    if settings.run is not None and [one.id for one in settings.planned] != orders.planned():
        raise ConfigError(
            f"{folder} holds a run that began with other amendments than the run file has; `thinwire-coordinator "
            "amend` lists and changes them; leave --run out to continue this one"
        )
    await worker.run(check_complete, state)
    return state


async def replay_run(
    kind: Kind, state: RunState, settings: CoordinatorSettings, worker: StartWorker, readiness: Readiness
) -> ReplayedRun:
    """Replay the ledger of an open run, and delete old files. Raises LedgerError if the run is damaged."""
    readiness.text = "replaying the ledger"
    replica = await worker.run(kind.at_head, state, worker.go_on)
    if replica.step:
        text = f"replayed the ledger: step {replica.step}, all fingerprints match"
        log.info("%s", text)
    retention = Retention(state, settings.keep, kind.bodies_named_by)
    await worker.run(retention.sweep)
    needs = await worker.run(check_disks, state, settings.keep, kind.forecast)
    recorded = await worker.run(state.ledger.recorded)

    def measure_disks() -> list[Need]:
        return measure(state, settings.keep, kind.forecast)[1]

    return ReplayedRun(replica, retention, needs, measure_disks, recorded.newest)


def check_settings(state: RunState, settings: CoordinatorSettings) -> None:
    """Raise ConfigError if the settings do not fit the run."""
    if settings.run is not None:
        check_run(state, settings.run)
    if settings.bodies is not None:
        check_bodies(state, settings.bodies)
    if settings.wait_for > (nodes_max := state.contract.round.nodes_max):
        raise ConfigError(f"--wait-for must be at most the contract's round.nodes_max, {nodes_max}")
