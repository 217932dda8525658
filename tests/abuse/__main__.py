"""`make abuse`: what each attack costs three honest nodes and the coordinator's memory (docs/abuse.md).

Quiet and attacked windows alternate in one run. Honest nodes, the organizer and attackers have machines of their own,
but here they share one. So the honest nodes have the first half of the cores, and the attacks run at the lowest
priority in the other half; in quiet windows, a program that only computes runs in their place.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from abuse.measurement import Measured, measure
from abuse.report import PAGE, section, with_tables
from abuse.scenes import SCENES, Scene
from abuse.swarm_under_attack import attacked_swarm

WINDOW_S = 10.0
TURNS = 2


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
