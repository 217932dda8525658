"""The kind of exchange `star`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thinwire_coordinator.hall.access.door import Door
from thinwire_coordinator.hall.capacity import ROW_BYTES, Forecast, OwnMemory, Sealed
from thinwire_coordinator.hall.kind import Kind, Opening
from thinwire_coordinator.hall.ledger.checks import SignatureCheck, no_snapshot
from thinwire_coordinator.hall.ledger.retention import SNAPSHOTS_KEPT
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_coordinator.hall.measuring import Measuring, nodes_evaluate
from thinwire_coordinator.hall.standby.keeper import IN_A_STORE, Keeper
from thinwire_coordinator.star.calls import StarService
from thinwire_coordinator.star.memory import audit_activation_bytes, star_memory
from thinwire_coordinator.star.replay import replica_at_head, replica_at_step
from thinwire_coordinator.star.star import Star
from thinwire_coordinator.star.trust.auditing import Auditor
from thinwire_coordinator.star.trust.observer import AccessTrustStore, TrustSettings
from thinwire_coordinator.star.upkeep import StarUpkeep
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
        if settings.seal_after_standby and state.bodies.folder is None:
            raise ConfigError(f"--seal-after-standby: {IN_A_STORE}")
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
