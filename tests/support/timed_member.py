"""A node of a gossip run that writes down when each of its iterations is in its journal.

Its iterations take at least ITERATION_S, so that on a fast machine too a run lasts until others have joined.

python timed_member.py FILE start …

FILE: one line for each, with the seconds of a clock of this process and the iteration. See `gaps_s`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

from thinwire_node import __main__
from thinwire_node.gossip.training import GossipTraining
from thinwire_node.gossip.work import Finished

ITERATION_S = 0.1


def slow_down() -> None:
    real = GossipTraining._compute

    async def compute(self: GossipTraining) -> bool:
        began = time.monotonic()
        done = await real(self)
        await asyncio.sleep(max(0.0, began + ITERATION_S - time.monotonic()))
        return done

    GossipTraining._compute = compute  # type: ignore[method-assign]


def record(file: Path) -> None:
    real = GossipTraining._took
    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def took(self: GossipTraining, finished: Finished) -> None:
        os.write(lines, f"{time.monotonic()} {finished.saved.iteration}\n".encode())
        real(self, finished)

    GossipTraining._took = took  # type: ignore[method-assign]


def gaps_s(file: Path) -> list[float]:
    """The seconds from each iteration to the next."""
    times = [float(line.split()[0]) for line in file.read_text().splitlines()]
    return [after - before for before, after in pairwise(times)]


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    slow_down()
    sys.argv = ["thinwire-node", *sys.argv[2:]]
    __main__.main()
