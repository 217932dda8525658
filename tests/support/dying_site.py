"""A node of several processes, of which one kills itself (kill -9) at a point of a contribution's life.

    python dying_site.py RANK POINT N start …

POINT: of the leader's or the followers' table below, at its N-th passing in this process. The leader starts its
followers as `python -m support.dying_site`, so that one of them can die.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import dying
from support.dying import Point
from thinwire_node import __main__ as node
from thinwire_node.cli import follower, site
from thinwire_node.star.saver import Saver
from thinwire_node.star.site import follower as jobs
from thinwire_node.star.work import Work
from thinwire_node.storage.state import NodeState

TESTS = Path(__file__).resolve().parents[1]
DIES = "DYING_SITE"
"""A variable of the followers: RANK POINT N."""

LEADER = {
    "extracted": Point(Work, "_extract", True),
    "its name is noted": Point(Saver, "note_sent", True),
    "answered": Point(Work, "settle", False),
    "settled": Point(Work, "_settle", True),
    "applied": Point(Work, "_apply", True),
    "the momentum is written": Point(NodeState, "write_momentum", True),
    "the momentum is renamed": Point(NodeState, "rename", True, lambda _, __, name: bool(name.startswith("momentum"))),
    "saved": Point(NodeState, "publish", True),
}
FOLLOWER = {
    "behind its extraction": ("extract", True),
    "before it applies": ("apply", False),
    "behind its part of a save": ("state", True),
}


def arm_follower(point: str, number: int) -> None:
    name, behind = FOLLOWER[point]
    real: Callable[..., Any] = jobs.JOBS[name]
    calls = 0

    def dies(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not behind:
            dying.die()
        found = real(*arguments)
        if calls == number:
            dying.die()
        return found

    jobs.JOBS[name] = dies


def lead() -> None:
    rank, point, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    del sys.argv[1:4]
    site.FOLLOWER_MODULE = "support.dying_site"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    if rank:
        os.environ[DIES] = f"{rank} {number} {point}"
    else:
        dying.POINTS.update(LEADER)
        dying.arm(point, number)
    node.main()


def follow() -> None:
    if DIES in os.environ:
        rank, number, point = os.environ[DIES].split(maxsplit=2)
        if sys.argv[2] == rank:
            arm_follower(point, int(number))
    follower.main()


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        lead()
    else:
        follow()
