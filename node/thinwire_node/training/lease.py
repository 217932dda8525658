"""The samples that a node may train on: runs of positions, in the order in which they were granted."""

from __future__ import annotations

from collections.abc import Iterable


class Lease:
    """`trained_through`: the last position taken, or None. The swarm is told with the next contribution."""

    def __init__(self, trained_through: int | None = None) -> None:
        self.trained_through = trained_through
        self._runs: list[range] = []

    @property
    def left(self) -> int:
        return sum(len(run) for run in self._runs)

    def renew(self, runs: Iterable[range]) -> None:
        """Take over the lease of an announcement. It begins with the positions that were taken since the swarm was last
        told; they are left out."""
        self._runs = list(runs)
        for number, run in enumerate(self._runs):
            if self.trained_through is not None and self.trained_through in run:
                rest = range(self.trained_through + 1, run.stop)
                self._runs = [part for part in (rest, *self._runs[number + 1 :]) if part]
                return

    def take(self, samples: int) -> list[int]:
        """The next positions, up to so many; they count as trained on from now. Call it only if some are left."""
        taken: list[int] = []
        while self._runs and len(taken) < samples:
            run = self._runs.pop(0)
            wanted = samples - len(taken)
            taken += run[:wanted]
            if rest := run[wanted:]:
                self._runs.insert(0, rest)
        self.trained_through = taken[-1]
        return taken
