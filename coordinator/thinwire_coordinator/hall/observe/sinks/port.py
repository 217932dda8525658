"""The interface of a sink, and the items that it receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

TRAINING = "training"
HELD_OUT = "held out"
CONSENSUS = "consensus"


@dataclass(frozen=True)
class Point:
    """Figures of a run at one step.

    series: TRAINING, CONSENSUS, or HELD_OUT and the name of the set. Steps ascend within a series, but a loss may be
    measured after the next step is sealed. step: number of updates sealed, or the median iteration of a gossip
    run. at: Unix time in seconds. values: by name, such as `loss/training`. tokens, bytes_up, bytes_down: totals of
    the run so far, which a restarted coordinator continues. rows: of the ledger by then.
    """

    series: str
    step: int
    at: float
    values: Mapping[str, float]
    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    rows: int | None = None


class Sink(Protocol):
    """Receives items. One thread calls all methods. They may block and raise anything."""

    def write(self, items: Sequence[Point]) -> None:
        """Write items, in order. When it returns, they have left this process."""

    def close(self) -> None:
        """End. Called once, also if nothing was written or if writing failed."""
