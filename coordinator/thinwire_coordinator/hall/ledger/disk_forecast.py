"""Predicts the disk space of a run from its sealed bodies or, before the first one, as its kind of exchange can."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.contract import Contract

ROW_BYTES = 2688
"""Size of a row with ten contributions, including signatures and its share of the receipt index (measured: 2.6 kB)."""
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
    body: str
    """What a body is, in words."""
    bodies: str
    """What the kept bodies are, in words."""
    is_bound: bool = True
    """Whether the run cannot take more, whatever its nodes do."""

    @property
    def total_bytes(self) -> int:
        return self.snapshots_bytes + self.updates_bytes + self.rows_bytes

    def in_words(self, elsewhere: str | None) -> str:
        """elsewhere: the address of the bodies, if they are not in the state directory."""
        size = human_bytes(self.update_bytes)
        about = "at most" if self.is_bound else "about"
        size = f"{size} on average so far" if self.measured else f"{about} {size}"
        most = ("" if self.measured else "at most ") if self.is_bound else "at most about "
        kept = f"{self.snapshots} snapshots and {self.bodies}"
        text = f"a snapshot is {human_bytes(self.snapshot_bytes)}, {self.body} {size}; the run will take {most}"
        if elsewhere is None:
            return f"{text}{human_bytes(self.total_bytes)} ({kept})"
        here_bytes = self.snapshots_bytes + self.rows_bytes
        return f"{text}{human_bytes(here_bytes)}, and {most}{human_bytes(self.updates_bytes)} at {elsewhere} ({kept})"


@dataclass(frozen=True)
class Sealed:
    """What a forecast follows from: the size of a snapshot, and the number and size of the bodies that are sealed.

    keep: see `retention`."""

    snapshot_bytes: int
    bodies: int
    bodies_bytes: int
    keep: int | None = None


ForecastOf = Callable[[Contract, Sealed], Forecast]
"""Predicts the peak disk usage of a run."""


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


def measure(state: RunState, keep: int | None, forecast_of: ForecastOf) -> tuple[Forecast, list[Need]]:
    """Return the forecast of a run and what each of its local disks needs."""
    ledger, steps = state.watch_ledger, state.snapshot_steps()
    snapshot_bytes, sealed = state.snapshot_path(steps[-1]).stat().st_size, ledger.step
    forecast = forecast_of(state.contract, Sealed(snapshot_bytes, sealed, ledger.body_bytes_since(0), keep))
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


def needs_of(state: RunState, keep: int | None, forecast_of: ForecastOf) -> list[Need]:
    """What each local disk needs."""
    return measure(state, keep, forecast_of)[1]
