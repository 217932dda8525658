"""Real processes of a gossip run are killed at each point of their journals, and start again.

The heads of the chains lead through what each node has mixed and kept. So the turns of an edge are compared by both
ends: each is mixed once, by both or by neither, with the same two messages.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import msgpack
import pytest

from deploy.local_swarm.processes import Process
from support.disks import fill, small_disk
from support.dying import JOURNAL, NEVER
from support.real import RealSwarm, ended, run_text, until, without_a_centre
from support.swarm_parameters import journal_of
from thinwire_node.gossip.journal import JOURNAL_FILE
from thinwire_proto.errors import MEND_DISK
from thinwire_proto.gossip.chain import GENESIS
from thinwire_proto.gossip.sender import UNACKNOWLEDGED_MAX

BEAT_MS = 2000
NAMES = ("one", "two")
AT = 4
DISK_MB = 24
PATIENCE_MS = 20_000
Record = tuple[int, int, int, str, str]
"""Topology, iteration, peer, hash of the node's message, hash of the peer's."""


def run_of(steps: int, beat_ms: int, patience_ms: int = PATIENCE_MS) -> str:
    gossip = without_a_centre(2, 2, "muon", topology="complete", codec="int8", patience_ms=patience_ms)
    return run_text(steps, length_ms=beat_ms, rounds='pace = "clock"') + gossip


def recording(swarm: RealSwarm, name: str, point: str = NEVER) -> Process:
    chain = str(swarm.folder / f"{name}.chain")
    return swarm.node(name, through=("dying.py", point, str(AT), "--chain", chain))


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


def head_of(folder: Path) -> bytes:
    """The head of the chain in the journal of a node that is stopped."""
    head: bytes = msgpack.unpackb(journal_of(folder).member.numbers, strict_map_key=False, raw=False)[0]
    return head


def as_peer_saw(chain: list[Record], peer: int, own: int) -> list[Record]:
    """The turns with a peer, as the peer has to have recorded them."""
    return [(topology, at, own, theirs, mine) for topology, at, other, mine, theirs in chain if other == peer]


def check_edge(one: list[Record], other: list[Record]) -> None:
    """Both ends have mixed the same turns, in the same order, each once. The newest of each topology may be under way,
    because the edge was left out, or the nodes were stopped."""
    assert one
    for end in (one, other):
        assert len({record[:3] for record in end}) == len(end)
    for topology in {record[0] for record in one + other}:
        these, those = ([record for record in end if record[0] == topology] for end in (one, other))
        shared = min(len(these), len(those))
        assert these[:shared] == those[:shared]
        assert abs(len(these) - len(those)) <= UNACKNOWLEDGED_MAX


@pytest.mark.timeout(600)
def test_a_node_killed_at_each_point_mixes_each_turn_once_and_as_its_peer_does(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_of(100_000, BEAT_MS))
    peer = recording(swarm, "one")
    for point in JOURNAL:
        dying = recording(swarm, "two", point)
        assert ended(dying) == -signal.SIGKILL, (point, dying.tail(20))
    whole = recording(swarm, "two")
    journal = swarm.folder / "two" / JOURNAL_FILE
    before = journal.stat().st_mtime_ns
    until(lambda: journal.stat().st_mtime_ns > before, "the node goes on", coordinator, peer, whole)
    for node in (whole, peer):
        node.tell(signal.SIGTERM)
        assert ended(node) == 0, node.tail(20)
    chains = {name: kept_chain(swarm.folder / f"{name}.chain", head_of(swarm.folder / name)) for name in NAMES}
    members = {"one": chains["two"][0][2], "two": chains["one"][0][2]}
    one = [record for record in chains["one"] if record[2] == members["two"]]
    check_edge(one, as_peer_saw(chains["two"], members["one"], members["two"]))
    assert "no node's iteration goes back" in swarm.verify()


def test_a_node_whose_disk_is_full_says_so_and_ends(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_of(10_000, BEAT_MS))
    with small_disk(swarm.folder / "one", DISK_MB) as disk:
        node, other = swarm.node("one", "--max-disk", "2 GB"), swarm.node("two")
        until((disk / JOURNAL_FILE).exists, "the first iteration", coordinator, node, other)
        # a save renames its file over the older one, and so makes room for the next save
        until(lambda: fill(disk) or not node.running, "the end of the node", node, other)  # type: ignore[func-returns-value]
        assert node.popen.returncode == 1
        assert f"No space left on device; {MEND_DISK}" in node.text()
        assert "Traceback" not in node.text()
