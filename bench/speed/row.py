"""One row of the table: our figure and that of a baseline."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

BITS = "bits per component"
BYTES_BY_DEFAULT = "bytes of a round, by default"
Better = Literal["less", "more"]


@dataclass(frozen=True)
class BenchRow:
    """One row.

    ours, baseline, wanted: in `unit`. wanted: the target, if there is one.
    """

    topic: str
    what: str
    ours: float
    baseline: float
    unit: str
    baseline_name: str
    better: Better = "less"
    wanted: float | None = None

    @property
    def ratio(self) -> float:
        """The factor over the baseline: 2 means half the cost or twice the speed, below 1 is worse."""
        first, second = (self.baseline, self.ours) if self.better == "less" else (self.ours, self.baseline)
        return first / second

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        if self.wanted is None:
            return None
        return self.ours <= self.wanted if self.better == "less" else self.ours >= self.wanted

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "reached": self.reached}

    @staticmethod
    def from_json(written: dict[str, Any]) -> BenchRow:
        return BenchRow(**{name: value for name, value in written.items() if name not in ("ratio", "reached")})
