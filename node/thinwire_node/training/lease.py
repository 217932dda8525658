"""A node's lease: the positions of the samples that it may train on, as runs in the order of their grants."""

from __future__ import annotations

from collections.abc import Iterable


class Lease:
    """A lease. `trained_through`: the last position taken, or None. The next contribution reports it to the swarm."""

    def __init__(self, trained_through: int | None = None) -> None:
        self.trained_through = trained_through
        self._runs: list[range] = []

    @property
    def left(self) -> int:
        return sum(len(run) for run in self._runs)

    @property
    def runs(self) -> tuple[range, ...]:
        return tuple(self._runs)

    def head(self, samples: int) -> tuple[range, ...]:
        """The next positions to take, at most `samples`."""
        found: list[range] = []
        for run in self._runs:
            if samples <= 0:
                break
            found.append(run[:samples])
            samples -= len(run)
        return tuple(found)

    def renew(self, runs: Iterable[range]) -> None:
        """Replace the lease by that of an announcement. Skips the positions at its beginning that were taken since the
        last report to the swarm."""
        self._runs = list(runs)
        for number, run in enumerate(self._runs):
            if self.trained_through is not None and self.trained_through in run:
                rest = range(self.trained_through + 1, run.stop)
                self._runs = [part for part in (rest, *self._runs[number + 1 :]) if part]
                return

    def give_back(self, trained_through: int | None) -> None:
        """Nothing is left, and what was taken after this position counts as not taken."""
        self._runs, self.trained_through = [], trained_through

    def take(self, samples: int) -> list[int]:
        """Take up to `samples` positions. They count as trained on from now. Requires at least one position left."""
        taken: list[int] = []
        while self._runs and len(taken) < samples:
            run = self._runs.pop(0)
            wanted = samples - len(taken)
            taken += run[:wanted]
            if rest := run[wanted:]:
                self._runs.insert(0, rest)
        self.trained_through = taken[-1]
        return taken
