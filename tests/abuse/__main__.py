"""`make abuse`: what each attack costs three honest nodes and the coordinator's memory (docs/abuse.md).

Quiet and attacked windows alternate in one run. Honest nodes, the organizer and attackers have machines of their own,
but here they share one. So the honest nodes have the first half of the cores, and the attacks run at the lowest
priority in the other half; in quiet windows, a program that only computes runs in their place.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from abuse.attack import NOTHING
from abuse.scenes import SCENES, Scene
from abuse.swarm_under_attack import NODES, SwarmUnderAttack, attacked_swarm

WINDOW_S = 10.0
TURNS = 2
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


PAGE = Path(__file__).parents[2] / "docs" / "abuse.md"
BEGIN, END = "<!-- abuse: begin; made by make abuse -->", "<!-- abuse: end -->"
HEAD = "| attack | sent in each window | round, quiet | round, attacked | longer | longest | counted a round | peak |"


def section(scene: Scene, found: list[Measured], bound_bytes: int) -> list[str]:
    """The part of a scene: heading, table, bound."""
    rows = [
        f"| {one.attack} | {'; '.join(one.sent)} | {median(one.quiet.rounds_s):.3f} s | "
        f"{median(one.attacked.rounds_s):.3f} s | {one.longer:+.1%} | {max(one.attacked.rounds_s):.2f} s | "
        f"{one.quiet.counted_a_round:.2f} / {one.attacked.counted_a_round:.2f} | {one.peak_bytes / 1e6:.0f} MB |"
        for one in found
    ]
    bound = f"Bound on the coordinator's memory: {bound_bytes / 1e6:.0f} MB. Allowed: rounds {LONGER_MAX:.0%} longer."
    return [f"### {scene.name}", "", scene.says, "", HEAD, "|---|---|---|---|---|---|---|---|", *rows, "", bound]


def with_tables(page: str, lines: list[str]) -> str:
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, "", *lines, END + rest.partition(END)[2]])


def main() -> None:
    parser = argparse.ArgumentParser("make abuse", description=__doc__)
    parser.add_argument("--window", type=float, default=WINDOW_S, help="seconds of each window")
    parser.add_argument("--turns", type=int, default=TURNS, help="windows of each kind, for each attack")
    parser.add_argument("--scene", default="", help="scenes whose name contains this")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE}")
    given = parser.parse_args()
    found, lines = list[Measured](), list[str]()
    for scene in (one for one in SCENES if given.scene.lower() in one.name.lower()):
        attacks = [name for name in scene.attacks if given.only in name]
        measured, bound_bytes = _measure(scene, attacks, given.window, given.turns)
        found += measured
        lines += [*section(scene, measured, bound_bytes), ""]
    print("\n".join(lines))
    if given.write:
        PAGE.write_text(with_tables(PAGE.read_text(), lines))
    sys.exit(not all(one.holds for one in found))


def _measure(scene: Scene, attacks: list[str], window_s: float, turns: int) -> tuple[list[Measured], int]:
    """What each attack did, and the bound on the coordinator's memory."""
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, attacked_swarm(Path(folder), scene.run) as swarm:
        for one in measure(swarm, attacks, window_s, turns):
            print(f"{scene.name}: {one.line()}", flush=True)
            found.append(one)
    return found, swarm.bound_bytes


if __name__ == "__main__":
    main()
