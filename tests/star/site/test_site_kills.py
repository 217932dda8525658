"""Tests that a node of several processes loses nothing and counts nothing twice, whichever of them is killed when."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import msgpack
import pytest
from safetensors import safe_open

from support.dying_site import FOLLOWER, LEADER
from support.real import RealSwarm, ended, run_text, until

ROUND_MS = 1500
"""Short, because a node saves once a round."""


def momentum_on_disk(folder: Path) -> tuple[bool, str, list[str]]:
    """Whether there is a momentum, the contribution in it without an outcome, and those that were sent since."""
    sent = json.loads((folder / "sent.json").read_text()) if (folder / "sent.json").exists() else []
    path = folder / "momentum.safetensors"
    if not path.exists():
        return False, "", sent
    with safe_open(path, framework="pt") as file:
        return True, (file.metadata() or {}).get("pending", ""), sent


def counted_in(swarm: RealSwarm) -> Counter[str]:
    """The number of times that the ledger counts each contribution."""
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        rows = [msgpack.unpackb(packed) for (packed,) in db.execute("SELECT counted FROM rows")]
    db.close()
    return Counter(entry[1].hex() for row in rows for entry in row)


POINTS = [(0, point) for point in LEADER] + [(1 + number % 2, point) for number, point in enumerate(FOLLOWER)]


@pytest.mark.parametrize(("rank", "point"), POINTS, ids=[f"{rank}-{point}" for rank, point in POINTS])
def test_a_momentum_is_taken_up_unless_what_it_holds_was_counted(swarm: RealSwarm, rank: int, point: str) -> None:
    swarm.coordinator(run_text(100_000, length_ms=ROUND_MS))
    dying = swarm.node("site", "--device", "cpu*3", through=("dying_site.py", str(rank), point, "4"))
    assert ended(dying) == (-signal.SIGKILL if rank == 0 else 1)
    is_there, pending, sent = momentum_on_disk(swarm.folder / "site")
    until(lambda: not swarm.active(), "the coordinator has noticed")
    before = counted_in(swarm)
    # the momentum on disk holds what was sent after it was saved, but for the one that is pending in it
    is_stale = any(name in before for name in sent if name != pending)

    again = swarm.node("site", "--device", "cpu*2")
    goal = swarm.counted("site") + 3
    until(lambda: swarm.counted("site") >= goal, "the node is counted again", again)
    again.tell(signal.SIGTERM)
    assert ended(again) == 0
    dropped = bool(again.events("node.momentum_dropped"))
    assert dropped == (is_there and is_stale)
    assert bool(again.events("node.momentum_taken_up")) == (is_there and not is_stale)
    assert not again.events("node.resync")
    assert max(counted_in(swarm).values()) == 1
    assert swarm.status().fingerprints_different == 0
    swarm.verify()
