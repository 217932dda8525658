"""Predicts the disk usage of a gossip run, whose bodies are the reports of a beat."""

from __future__ import annotations

from thinwire_coordinator.hall.capacity import ROW_BYTES, Forecast, Sealed
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import REPORT_BYTES
from thinwire_proto.gossip.consensus import MEASURE_EVERY, SKETCH_BYTES

SNAPSHOTS = 3
"""The first state, the mean, and the mean as it is written."""


def gossip_forecast(contract: Contract, sealed: Sealed) -> Forecast:
    return predict_beats(contract.round.min_contributions, contract.schedule.steps, sealed)


def predict_beats(nodes: int, steps: int, sealed: Sealed) -> Forecast:
    """Predict the disk usage of a run whose nodes take so many iterations.

    How many beats it takes depends on the nodes' pace. A beat is usually longer than an iteration, so one row for each
    iteration is more than most runs have. nodes: that it begins with; for the size of a row before the first, and for
    the sketches.
    """
    row_bytes = -(-sealed.bodies_bytes // sealed.bodies) if sealed.bodies else nodes * REPORT_BYTES
    return Forecast(
        snapshot_bytes=sealed.snapshot_bytes,
        update_bytes=row_bytes,
        measured=sealed.bodies > 0,
        snapshots=SNAPSHOTS,
        snapshots_bytes=SNAPSHOTS * sealed.snapshot_bytes,
        updates_bytes=row_bytes * steps + nodes * SKETCH_BYTES * (1 + steps // MEASURE_EVERY),
        rows_bytes=ROW_BYTES * steps,
        body="the reports of a beat",
        bodies="every report",
        is_bound=False,
    )
