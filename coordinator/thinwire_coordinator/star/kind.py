"""The kind of exchange `star`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.door import Door
from thinwire_coordinator.hall.capacity import ROW_BYTES, Forecast, OwnMemory, Sealed
from thinwire_coordinator.hall.kind import Kind, Opening
from thinwire_coordinator.hall.ledger.checks import SignatureCheck, no_snapshot
from thinwire_coordinator.hall.ledger.kept_replica import KeptReplica
from thinwire_coordinator.hall.ledger.retention import SNAPSHOTS_KEPT, Retention
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_coordinator.hall.measurement import MeasureHere
from thinwire_coordinator.hall.measuring import Measuring, nodes_evaluate
from thinwire_coordinator.hall.run import Upkeep
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.calls import StarService
from thinwire_coordinator.star.evaluations import Evaluations, Result
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.memory import audit_activation_bytes, star_memory
from thinwire_coordinator.star.replay import replica_at_head, replica_at_step
from thinwire_coordinator.star.star import Star
from thinwire_coordinator.star.trust.auditing import Auditor
from thinwire_coordinator.star.trust.observer import AccessTrustStore, TrustSettings
from thinwire_coordinator.star.verify import verify_updates
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.amendments import history
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.task import task_of
from thinwire_proto.wire.codec import update_bytes_max


class StarKind(Kind):
    unit = "step"
    counted = "contributions counted"
    origin = (
        "The model is its first state plus the updates in the run's ledger, and whoever has the run's state directory",
        "can compute it again:",
    )

    def open(self, opening: Opening) -> Star:
        hall, settings, state = opening.hall, opening.settings, opening.hall.state
        auditor = Auditor(state.contract, state.data, state.blobs) if settings.audit_every else None
        trust = TrustSettings(AccessTrustStore(opening.access, hall.workers), auditor, max(1, settings.audit_every))
        keeper = Keeper(state, hall.workers, hall.now, needed=settings.seal_after_standby)
        run = Star(hall, settings.wait_for, trust=trust, keeper=keeper)
        by_nodes = nodes_evaluate(state.contract, state.held_out_sets, settings.evaluate)
        measuring = Measuring(hall, opening.held_out, samples=settings.http is not None)
        evaluations = run.evaluations if by_nodes else None
        every = settings.evaluate_every
        run.keep_up = StarUpkeep(hall, measuring, run.feed, opening.retention, every, evaluations)
        return run

    def service(self, run: Any, door: Door, **others: Any) -> StarService:
        return StarService(run, door, **others)  # type: ignore[abstract]  # other kinds have the rest

    def at_head(self, state: RunState, go_on: GoOn = always) -> Replica:
        replica = replica_at_head(state, set_aside=True, go_on=go_on)
        if state.went_back_since(state.snapshot_steps()[-1]):  # killed before it was written, and nodes need it
            state.save_snapshot(replica)
        return replica

    def model_at(self, state: RunState, step: int | None) -> Replica:
        if step is None:
            return replica_at_head(state)
        if not 0 <= step <= state.ledger.step:
            raise ConfigError(f"there is no step {step}: the ledger holds steps 0 to {state.ledger.step}")
        if not state.snapshot_steps():
            raise no_snapshot(state)
        if why := state.why_not_kept(step):
            raise ConfigError(why)
        return replica_at_step(state, step)

    def trained(self, contract: Contract, replica: Replica) -> int:
        return replica.step

    def rows_with_samples(self, replica: Replica) -> int:
        return replica.step

    def forecast(self, contract: Contract, sealed: Sealed) -> Forecast:
        return star_forecast(contract, sealed)

    def memory(self, contract: Contract, frozen: int, *, audits: bool) -> OwnMemory:
        activations = audit_activation_bytes(contract) if audits else 0
        is_shared = bool(task_of(contract.model).blobs())  # with the model that measures: see `shared_base`
        return star_memory(contract, 0 if is_shared else frozen, audits=audits, activations=activations)

    def verify(self, state: RunState, say: Callable[[str], None], signatures: SignatureCheck) -> None:
        verify_updates(state, say, signatures)

    def in_card(self, contract: Contract, steps: int, contributions: int) -> Sequence[tuple[str, str]]:
        updates = sum(last - first for first, last in history(contract, steps))
        return [("updates", f"{updates:,}, from {contributions:,} contributions")]


KIND = StarKind()


def star_forecast(contract: Contract, sealed: Sealed) -> Forecast:
    """Predict the peak disk usage of a run.

    A snapshot is due when the bodies since the last one are as large as a snapshot; there is also one at the start and
    one at the end. With `keep`, bodies stay one interval longer than their snapshot.
    """
    demo, steps = contract.demo, contract.schedule.steps
    bound = update_bytes_max(TileLayout(contract.parameters), demo.magnitude, demo.update_levels)
    snapshot_bytes, keep = sealed.snapshot_bytes, sealed.keep
    update_bytes = -(-sealed.bodies_bytes // sealed.bodies) if sealed.bodies else bound
    all_bytes = update_bytes * steps
    snapshots = 2 + all_bytes // snapshot_bytes
    updates_bytes = all_bytes
    if keep is None:
        snapshots = min(snapshots, SNAPSHOTS_KEPT + 2)  # the first state, the newest few, and one being written
    else:
        snapshots = min(snapshots, keep + 1)
        updates_bytes = min(all_bytes, (keep + 1) * (snapshot_bytes + update_bytes))
    return Forecast(
        snapshot_bytes=snapshot_bytes,
        update_bytes=update_bytes,
        measured=sealed.bodies > 0,
        snapshots=snapshots,
        snapshots_bytes=snapshots * snapshot_bytes,
        updates_bytes=updates_bytes,
        rows_bytes=ROW_BYTES * steps,
        body="an update",
        bodies="every update" if keep is None else "the updates since the oldest of them",
    )


log = logging.getLogger("thinwire.coordinator")


@dataclass
class StarUpkeep(Upkeep):
    """every: steps between two measurements. evaluations: measure by nodes; None: the coordinator measures."""

    feed: Feed
    retention: Retention
    every: int
    evaluations: Evaluations | None = None

    async def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        measured = await self.measuring.newest_step()
        if self.evaluations is None:
            return [self._follow(measured)]
        self.evaluations.begin(self.every, self.measuring.samples, measured)
        return [self._follow(measured), self._collect(self.evaluations)]

    async def _follow(self, measured: int | None) -> None:
        """After each sealed step, measure the loss if that is due, and write a snapshot if that is due."""
        by_nodes = self.evaluations is not None
        if measured is not None:  # a run that goes on shows what its model writes, also when it is complete
            copy = await self.hall.copies.take()
            await self.measuring.sample(copy, copy.step)
            del copy
        while True:
            step, newest = self.feed.step, self._newest()  # going back adds one too, and deletes those before it
            last = step == self.hall.contract.schedule.steps
            # nodes leave after the last step, so the coordinator measures it in any case
            due = last or (not by_nodes and (measured is None or step - measured >= self.every))
            to_measure = due and (measured is None or step > measured)
            to_save = step > newest and (
                last or await self.hall.workers.once_unlocked(Job.WEIGH_SNAPSHOT, self._is_due, newest)
            )
            if to_measure or to_save:
                # work on a copy, so that neither a measurement nor a slow disk delays the replica
                copy = await self.hall.copies.take()
                if to_measure:
                    measured = copy.step
                    await self.measuring.measure_all(copy, copy.step)
                if to_save and copy.step > self._newest():
                    await self._save(copy)
                del copy  # with its file
            await self.hall.sealed.wait()
            self.hall.sealed.clear()

    def _newest(self) -> int:
        return self.hall.state.snapshot_steps()[-1]

    def _is_due(self, newest: int) -> bool:
        """Whether the bodies since the newest snapshot are larger than it.

        So a node that catches up never downloads more than about twice a snapshot.
        """
        state = self.hall.state
        return state.upkeep_ledger.body_bytes_since(newest) > state.snapshot_path(newest).stat().st_size

    async def _save(self, copy: KeptReplica) -> None:
        path = self.hall.state.snapshot_path(copy.step)
        await self.hall.workers.submit(Job.WRITE_SNAPSHOT, copy.become_snapshot, path)
        text = f"step {copy.step}: snapshot written"
        tell(log, logging.INFO, "coordinator.snapshot_written", text, step=copy.step)
        await self.hall.workers.once_unlocked(Job.DELETE_OLD, self.retention.trim)

    async def _collect(self, evaluations: Evaluations) -> None:
        """Record what nodes measured, and measure the parts that they did not."""
        while True:
            await self._take(evaluations, await evaluations.results.get())

    async def _take(self, evaluations: Evaluations, result: Result) -> None:
        """Take one result or part of a measurement by nodes."""
        if not evaluations.wants(result):
            return
        action, copy, measuring = result.action, await result.copy, self.measuring
        if isinstance(action, MeasureHere):
            part = action.part
            numbers = measuring.spread(part.name, part.spread)[part.start : part.start + part.count]
            loss = await measuring.measure_part(copy, part.name, numbers)
            evaluations.measured_here(result.measurement, part, math.nan if loss is None else loss)
            return
        if action.name in measuring.damaged and not math.isfinite(action.loss):
            return  # it is the coordinator's own part
        await measuring.record(action.step, action.name, action.loss, action.measured_by)
        if result.measurement.complete and evaluations.results.empty():
            self.hall.measured_step = max(self.hall.measured_step, action.step)
            if math.isfinite(action.loss) and action.step:
                await measuring.sample(copy, copy.step)
