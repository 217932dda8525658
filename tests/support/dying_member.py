"""A node of a gossip run that records each turn that it mixes, and kills itself (kill -9) at a point.

python dying_member.py POINT N FILE start …

POINT: of POINTS, at its N-th passing in this process, or `never`. FILE: one JSON line for each turn that is mixed in
memory, [head before, head after, topology, iteration, peer, hash of its message, hash of the peer's]. Only those on the
way from the first head to the last one in the journal were kept: see `kept_chain`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thinwire_node import __main__
from thinwire_node.gossip import journal as gossip_journal
from thinwire_node.gossip.journal import JOURNAL_FILE, GossipJournal
from thinwire_node.gossip.neighbours import Neighbours
from thinwire_node.storage.state import NodeState
from thinwire_proto.gossip.chain import GENESIS, MixChain
from thinwire_proto.gossip.iteration import Turn

NEVER = "never"
POINTS: dict[str, tuple[Any, str, bool]] = {
    "a message is confirmed": (Neighbours, "confirmed", False),  # first, while the edge is there for certain
    "before the write": (GossipJournal, "write", False),
    "amid the write": (gossip_journal, "save_tensors", True),
    "written": (gossip_journal, "save_tensors", True),
    "renamed": (NodeState, "rename", True),
    "before messages leave": (Neighbours, "send", False),
    "messages queued": (Neighbours, "send", True),
}
Record = tuple[int, int, int, str, str]
"""Topology, iteration, peer, hash of the node's message, hash of the peer's."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, number: int) -> None:
    owner, name, behind = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def dies(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += name != "rename" or arguments[2] == JOURNAL_FILE
        if calls == number and not behind:
            die()
        result = real(*arguments, **named)
        if calls == number:
            if point == "amid the write":
                os.truncate(arguments[1], Path(arguments[1]).stat().st_size // 2)
            die()
        return result

    setattr(owner, name, dies)


def record(file: Path) -> None:
    real = MixChain.extend
    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def extend(chain: MixChain, turn: Turn) -> None:
        before, hashes = chain.head, [each.hex() for each in chain._hashes[turn]]
        real(chain, turn)
        place = [turn.topology, turn.iteration, turn.peer]
        os.write(lines, (json.dumps([before.hex(), chain.head.hex(), *place, *hashes]) + "\n").encode())

    MixChain.extend = extend  # type: ignore[assignment,method-assign]


def kept_chain(file: Path, head: bytes) -> list[Record]:
    """The turns on the way to a head, oldest first. Raises KeyError if the record does not lead to it."""
    after = {entry[1]: entry for entry in map(json.loads, file.read_text().splitlines())}
    found: list[Record] = []
    at = head.hex()
    while at != GENESIS.hex():
        before, _, *rest = after[at]
        found.append((rest[0], rest[1], rest[2], rest[3], rest[4]))
        at = before
    return found[::-1]


if __name__ == "__main__":
    point, number, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    record(file)
    if point != NEVER:
        arm(point, number)
    sys.argv = ["thinwire-node", *sys.argv[4:]]
    __main__.main()
