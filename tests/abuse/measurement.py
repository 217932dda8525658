"""Measures rounds and memory in windows that alternate between quiet and attacked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from abuse.attack import NOTHING
from abuse.swarm_under_attack import NODES, SwarmUnderAttack

LONGER_MAX = 0.10
"""The largest delay of the median round, as a part."""


@dataclass
class Window:
    """All windows of one kind. rounds_s: time between two sealed rounds. counted: contributions of honest nodes."""

    rounds_s: list[float] = field(default_factory=list)
    rounds: int = 0
    counted: int = 0

    @property
    def counted_a_round(self) -> float:
        """Of the honest nodes' contributions, how many were counted in a round: all of them if it is len(NODES)."""
        return self.counted / max(1, self.rounds)


@dataclass
class Measured:
    """The measurement of one attack. sent: as the attack tells it, for each window."""

    attack: str
    bound_bytes: int
    quiet: Window = field(default_factory=Window)
    attacked: Window = field(default_factory=Window)
    peak_bytes: int = 0
    sent: list[str] = field(default_factory=list)

    @property
    def longer(self) -> float:
        """The delay of the median round under attack, as a part of the quiet one."""
        return median(self.attacked.rounds_s) / median(self.quiet.rounds_s) - 1

    @property
    def holds(self) -> bool:
        return self.longer <= LONGER_MAX and self.peak_bytes <= self.bound_bytes

    def line(self) -> str:
        return (
            f"{self.attack}: round {median(self.quiet.rounds_s):.3f} s quiet, {median(self.attacked.rounds_s):.3f} s "
            f"attacked ({self.longer:+.1%}), longest {max(self.attacked.rounds_s):.2f} s; counted a round "
            f"{self.quiet.counted_a_round:.2f} and {self.attacked.counted_a_round:.2f}; peak "
            f"{self.peak_bytes / 1e6:.0f} MB; {self.sent[-1]}"
        )


def measure(swarm: SwarmUnderAttack, attacks: Sequence[str], window_s: float, turns: int) -> Iterator[Measured]:
    for attack in attacks:
        found = Measured(attack, swarm.bound_bytes)
        swarm.forget_peak()
        for _ in range(turns):
            _during(swarm, NOTHING, found.quiet, window_s)
            found.sent.append(_during(swarm, attack, found.attacked, window_s))
        found.peak_bytes = swarm.peak_bytes()
        yield found


def _during(swarm: SwarmUnderAttack, attack: str, window: Window, seconds: float) -> str:
    """Measure while an attack lasts. Returns what it has sent."""
    (process,) = swarm.begin(attack)
    _watch(swarm, window, seconds)
    return swarm.end(process)


def _watch(swarm: SwarmUnderAttack, window: Window, seconds: float) -> None:
    before, began = swarm.counted(), time.time()
    time.sleep(seconds)
    ended, after = time.time(), swarm.counted()
    sealed = [at for at in swarm.sealed_at() if began <= at <= ended]
    window.rounds_s += [later - earlier for earlier, later in pairwise(sealed)]
    window.counted += sum(after[name] - before.get(name, 0) for name in NODES)
    window.rounds += len(sealed)
