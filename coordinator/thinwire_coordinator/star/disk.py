"""Predicts the disk usage of a star run, whose bodies are updates."""

from __future__ import annotations

from thinwire_coordinator.hall.capacity import ROW_BYTES, Forecast, Sealed
from thinwire_coordinator.hall.ledger.retention import SNAPSHOTS_KEPT
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire.codec import update_bytes_max


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
