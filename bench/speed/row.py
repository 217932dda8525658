"""One row of the table: a figure of ours beside a figure of somebody else's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

BITS = "bits per component"
"""The topic that has a panel of its own in the plot."""
BYTES_BY_DEFAULT = "bytes of a round, by default"
Better = Literal["less", "more"]


@dataclass(frozen=True)
class Row:
    """ours, baseline, wanted: in `unit`. wanted: what is to be reached, if something is. series and x: the curve of the
    plot that the row is a point of (k, or a number of nodes), if it is one."""

    topic: str
    what: str
    ours: float
    baseline: float
    unit: str
    baseline_name: str
    better: Better = "less"
    wanted: float | None = None
    series: str = ""
    x: float | None = None

    @property
    def ratio(self) -> float:
        """How many times better than the baseline: 2 is half as much of what costs, or twice as much of what is
        wanted; below 1 it is worse."""
        first, second = (self.baseline, self.ours) if self.better == "less" else (self.ours, self.baseline)
        return first / second

    @property
    def reached(self) -> bool | None:
        """None where nothing is to be reached."""
        if self.wanted is None:
            return None
        return self.ours <= self.wanted if self.better == "less" else self.ours >= self.wanted

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "reached": self.reached}

    @staticmethod
    def from_json(written: dict[str, Any]) -> Row:
        return Row(**{name: value for name, value in written.items() if name not in ("ratio", "reached")})
