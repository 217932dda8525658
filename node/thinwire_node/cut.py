"""When a node stops adding to its contribution, so that it arrives in time. Pure: seconds come in, seconds go out."""

from __future__ import annotations

MARGIN_S = 0.25
"""For what is not measured yet: the way there, and the coordinator's own check."""
SAFETY = 2.0
"""The next encoding and upload may take this many times the last one."""


class Cut:
    """Learns how long a contribution takes from the cut until its last byte is out."""

    def __init__(self) -> None:
        self._tail_s = 0.0

    def measured(self, tail_s: float) -> None:
        self._tail_s = tail_s

    def train_for_s(self, time_left_s: float) -> float:
        """How long to train in a round that is over in `time_left_s`; a tenth of it is the least margin."""
        return time_left_s - max(MARGIN_S, time_left_s / 10) - SAFETY * self._tail_s
