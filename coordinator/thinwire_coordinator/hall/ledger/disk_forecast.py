"""Predicts the disk space of a run from its sealed bodies or, before the first one, from the codec's bound.

A body is an update. Without a centre it has the reports of a beat, and before the first one its size is estimated.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.ledger.retention import SNAPSHOTS_KEPT
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.consensus import MEASURE_EVERY, SKETCH_BYTES
from thinwire_proto.needs import REPORT_BYTES
from thinwire_proto.wire.codec import update_bytes_max

ROW_BYTES = 2688
"""Size of a row with ten contributions, including signatures and its share of the receipt index (measured: 2.6 kB)."""
SNAPSHOTS_WITHOUT_A_CENTRE = 3
"""The first state, the mean, and the mean as it is written."""
COPIES_MAX = 3
"""Files of the replica that are measured by the coordinator, by nodes, or audited, and deleted afterwards."""


@dataclass(frozen=True)
class Forecast:
    """The peak disk usage of the run, in bytes."""

    snapshot_bytes: int
    """Size of one snapshot."""
    update_bytes: int
    """Size of one body: the mean of the sealed ones, or the bound or estimate if there are none."""
    measured: bool
    """Whether update_bytes is a mean."""
    snapshots: int
    snapshots_bytes: int
    updates_bytes: int
    rows_bytes: int
    has_centre: bool = True

    @property
    def total_bytes(self) -> int:
        return self.snapshots_bytes + self.updates_bytes + self.rows_bytes


def predict(
    snapshot_bytes: int, update_bytes_max: int, steps: int, sealed: int, sealed_bytes: int, keep: int | None
) -> Forecast:
    """Predict the peak disk usage of a run of `steps` updates, of which `sealed` with `sealed_bytes` in total exist.

    keep: see `retention`. A snapshot is due when the bodies since the last one are as large as a snapshot; there is
    also one at the start and one at the end. With `keep`, bodies stay one interval longer than their snapshot.
    """
    update_bytes = -(-sealed_bytes // sealed) if sealed else update_bytes_max
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
        measured=sealed > 0,
        snapshots=snapshots,
        snapshots_bytes=snapshots * snapshot_bytes,
        updates_bytes=updates_bytes,
        rows_bytes=ROW_BYTES * steps,
    )


def predict_beats(snapshot_bytes: int, nodes: int, steps: int, sealed: int, sealed_bytes: int) -> Forecast:
    """Predict the disk usage of a run without a centre, whose nodes take so many steps.

    How many beats it takes depends on the nodes' pace. A beat is usually longer than a step, so one row a step is more
    than most runs have. nodes: that it begins with; for the size of a row before the first, and for the sketches.
    """
    row_bytes = -(-sealed_bytes // sealed) if sealed else nodes * REPORT_BYTES
    return Forecast(
        snapshot_bytes=snapshot_bytes,
        update_bytes=row_bytes,
        measured=sealed > 0,
        snapshots=SNAPSHOTS_WITHOUT_A_CENTRE,
        snapshots_bytes=SNAPSHOTS_WITHOUT_A_CENTRE * snapshot_bytes,
        updates_bytes=row_bytes * steps + nodes * SKETCH_BYTES * (1 + steps // MEASURE_EVERY),
        rows_bytes=ROW_BYTES * steps,
        has_centre=False,
    )


def in_words(forecast: Forecast, keep: int | None, elsewhere: str | None) -> str:
    """Describe a forecast. elsewhere: the address of the bodies, if they are not in the state directory."""
    bound = "at most " if forecast.has_centre else "about "
    size = human_bytes(forecast.update_bytes)
    size = f"{size} on average so far" if forecast.measured else f"{bound}{size}"
    if forecast.has_centre:
        body, bodies = "an update", "every update" if keep is None else "the updates since the oldest of them"
        most = "" if forecast.measured else bound
    else:
        body, bodies, most = "the reports of a beat", "every report", "at most about "
    kept = f"{forecast.snapshots} snapshots and {bodies}"
    text = f"a snapshot is {human_bytes(forecast.snapshot_bytes)}, {body} {size}; the run will take {most}"
    if elsewhere is None:
        return f"{text}{human_bytes(forecast.total_bytes)} ({kept})"
    here_bytes = forecast.snapshots_bytes + forecast.rows_bytes
    return f"{text}{human_bytes(here_bytes)}, and {most}{human_bytes(forecast.updates_bytes)} at {elsewhere} ({kept})"


@dataclass(frozen=True)
class Need:
    """The space that the run needs on one disk, the part of it that exists already, and the free space, in bytes."""

    location: str
    total_bytes: int
    there_bytes: int
    free_bytes: int

    @property
    def short_bytes(self) -> int:
        """The bytes that are lacking; 0 or less if the run fits."""
        return self.total_bytes - self.there_bytes - self.free_bytes


def measure(state: RunState, keep: int | None) -> tuple[Forecast, list[Need]]:
    """Return the forecast of a run and what each of its local disks needs."""
    ledger, steps = state.watch_ledger, state.snapshot_steps()
    snapshot_bytes = state.snapshot_path(steps[-1]).stat().st_size
    demo, planned, sealed = state.contract.demo, state.contract.schedule.steps, ledger.step
    if state.contract.exchange.kind == "gossip":
        nodes = state.contract.round.min_contributions
        forecast = predict_beats(snapshot_bytes, nodes, planned, sealed, ledger.body_bytes_since(0))
    else:
        bound = update_bytes_max(TileLayout(state.contract.parameters), demo.magnitude, demo.update_levels)
        forecast = predict(snapshot_bytes, bound, planned, sealed, ledger.body_bytes_since(0), keep)
    here = Need(
        str(state.folder),
        forecast.snapshots_bytes + forecast.rows_bytes + COPIES_MAX * snapshot_bytes,
        snapshot_bytes * len(steps) + ROW_BYTES * sealed,
        shutil.disk_usage(state.folder).free,
    )
    folder = state.bodies.folder
    if folder is None:
        return forecast, [here]
    kept_bytes = ledger.body_bytes_since(steps[0])
    if folder.stat().st_dev == state.folder.stat().st_dev:
        both = Need(
            here.location, here.total_bytes + forecast.updates_bytes, here.there_bytes + kept_bytes, here.free_bytes
        )
        return forecast, [both]
    there = Need(str(folder), forecast.updates_bytes, kept_bytes, shutil.disk_usage(folder).free)
    return forecast, [here, there]
