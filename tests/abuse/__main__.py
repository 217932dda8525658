"""`make abuse`: what each attack costs three honest nodes and the coordinator's memory (docs/abuse.md).

Quiet and attacked windows alternate in one run. An attacker has other machines than the organizer, but here all share
the same cores, so the attacks run at the lowest priority.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from abuse.measurement import Measured, measure
from abuse.report import PAGE, table, with_table
from abuse.swarm_under_attack import attacked_swarm

WINDOW_S = 15.0
TURNS = 2


def main() -> None:
    parser = argparse.ArgumentParser("make abuse", description=__doc__)
    parser.add_argument("--window", type=float, default=WINDOW_S, help="seconds of each window")
    parser.add_argument("--turns", type=int, default=TURNS, help="windows of each kind, for each attack")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, attacked_swarm(Path(folder)) as swarm:
        found: list[Measured] = []
        for one in measure(swarm, given.window, given.turns, given.only):
            print(one.line(), flush=True)
            found.append(one)
        lines = table(found, swarm.bound_bytes)
    print("\n".join(lines))
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), lines))
    sys.exit(not all(one.holds for one in found))


if __name__ == "__main__":
    main()
