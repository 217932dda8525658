"""A directory of a gossip run, and nodes that report to it, under virtual time."""

from __future__ import annotations

from thinwire_coordinator.gossip.directory import Directory
from thinwire_coordinator.gossip.formation import FormedTopology, Plan, form
from thinwire_coordinator.gossip.participants import Heard
from thinwire_coordinator.gossip.settings import GossipSettings
from thinwire_proto.gossip.assignment import Assignment

BEAT_S = 10.0
SETTINGS = GossipSettings("ring", 3, 64, BEAT_S, steps=10_000, samples=4, patience_s=1.0, absent_s=60.0, codec="sign")
LOST_S = SETTINGS.lost_after_s


def heard(directory: Directory, node: str, iteration: int, now: float, missed: tuple[int, ...] = ()) -> int:
    report = Heard(node, directory.number, iteration, missed)
    assert directory.why_refuse(report) == ""
    return directory.hear(report, now).member


def assigned(directory: Directory, node: str) -> Assignment | None:
    """The part of a node in the newest topology; None if it is no member."""
    known = directory.by_node[node]
    return directory.topology.assignment(known.member) if directory.topology and directory.runs(known) else None


def begun(directory: Directory, now: float) -> FormedTopology:
    """Form and begin the topology that is due."""
    plan = directory.decide(now)
    assert isinstance(plan, Plan), plan
    formed = form(directory.settings.topology, plan, directory.topology)
    directory.begin(formed, now)
    return formed


def trained(directory: Directory, nodes: str, beats: int, per_beat: int, since: float = 0.0) -> float:
    """All nodes report in each beat. Returns the time of the last report."""
    now = since
    for beat in range(1, beats + 1):
        now = since + beat * BEAT_S
        for node in nodes:
            heard(directory, node, directory.by_node[node].iteration + per_beat, now)
    return now
