"""How much disk a run will take, foretold: from what is sealed so far, or from the codec's bound before that."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from thinwire_common.units import human_bytes
from thinwire_coordinator.ledger.retention import SNAPSHOTS_KEPT
from thinwire_coordinator.ledger.state_directory import State
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire.codec import update_bytes_max

ROW_BYTES = 2048
"""A row with ten contributions, with its share of the index that finds receipts (measured: 1.9 kB)."""


@dataclass(frozen=True)
class Forecast:
    """The most that is on disk at any time of the run, in bytes."""

    snapshot_bytes: int
    """One snapshot."""
    update_bytes: int
    """One update's body: the mean of those sealed, or the codec's bound if none is."""
    measured: bool
    snapshots: int
    snapshots_bytes: int
    updates_bytes: int
    rows_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.snapshots_bytes + self.updates_bytes + self.rows_bytes


def foretell(
    snapshot_bytes: int, update_bytes_max: int, steps: int, sealed: int, sealed_bytes: int, keep: int | None
) -> Forecast:
    """`sealed` updates of `sealed_bytes` in all are there, of `steps`; `keep` as in `retention`.

    A snapshot is due when the bodies since the last one weigh as much as it does; there is one at the start and one at
    the end. With `keep`, bodies stay for one interval longer than their snapshot.
    """
    update_bytes = -(-sealed_bytes // sealed) if sealed else update_bytes_max
    all_bytes = update_bytes * steps
    snapshots = 2 + all_bytes // snapshot_bytes
    updates_bytes = all_bytes
    if keep is None:
        snapshots = min(snapshots, SNAPSHOTS_KEPT + 2)  # the first state, the newest few, the one that is written
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


def in_words(forecast: Forecast, keep: int | None, elsewhere: str | None) -> str:
    """elsewhere: where the bodies lie, if not in the state directory."""
    most = "" if forecast.measured else "at most "
    update = f"{most}{human_bytes(forecast.update_bytes)}" + (" on average so far" if forecast.measured else "")
    updates = "every update" if keep is None else "the updates since the oldest of them"
    kept = f"{forecast.snapshots} snapshots and {updates}"
    text = f"a snapshot is {human_bytes(forecast.snapshot_bytes)}, an update {update}; the run will take {most}"
    if elsewhere is None:
        return f"{text}{human_bytes(forecast.total_bytes)} ({kept})"
    here_bytes = forecast.snapshots_bytes + forecast.rows_bytes
    return f"{text}{human_bytes(here_bytes)}, and {most}{human_bytes(forecast.updates_bytes)} at {elsewhere} ({kept})"


@dataclass(frozen=True)
class Need:
    """What a disk will have to hold, what of it is there already, and what is free, in bytes."""

    place: str
    total_bytes: int
    there_bytes: int
    free_bytes: int

    @property
    def short_bytes(self) -> int:
        """By how much the run does not fit; 0 or less if it does."""
        return self.total_bytes - self.there_bytes - self.free_bytes


def measure(state: State, keep: int | None) -> tuple[Forecast, list[Need]]:
    """The forecast of a run, and what it means for each local disk that it lies on."""
    ledger, steps = state.reading_ledger, state.snapshot_steps()
    snapshot_bytes = state.snapshot_path(steps[-1]).stat().st_size
    bound = update_bytes_max(TileLayout(state.contract.parameters), state.contract.demo.magnitude)
    sealed = ledger.step
    forecast = foretell(snapshot_bytes, bound, state.contract.schedule.steps, sealed, ledger.body_bytes_since(0), keep)
    here = Need(
        str(state.folder),
        forecast.snapshots_bytes + forecast.rows_bytes,
        snapshot_bytes * len(steps) + ROW_BYTES * sealed,
        shutil.disk_usage(state.folder).free,
    )
    folder = state.bodies.folder
    if folder is None:
        return forecast, [here]
    kept_bytes = ledger.body_bytes_since(steps[0])
    if folder.stat().st_dev == state.folder.stat().st_dev:
        both = Need(here.place, forecast.total_bytes, here.there_bytes + kept_bytes, here.free_bytes)
        return forecast, [both]
    there = Need(str(folder), forecast.updates_bytes, kept_bytes, shutil.disk_usage(folder).free)
    return forecast, [here, there]
