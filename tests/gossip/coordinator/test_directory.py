"""The directory of a gossip run, under virtual time."""

from __future__ import annotations

import msgpack
import pytest

from support.directories import BEAT_S, LOST_S, SETTINGS, assigned, begun, heard, trained
from thinwire_coordinator.gossip.directory import Collect, Directory, Phase, Wait
from thinwire_coordinator.gossip.formation import Plan
from thinwire_coordinator.gossip.participants import Heard
from thinwire_proto.errors import Damaged
from thinwire_proto.gossip.assignment import Assignment


@pytest.fixture
def directory() -> Directory:
    """Three nodes in their first topology."""
    directory = Directory(SETTINGS)
    for node in "abc":
        heard(directory, node, 0, 0.0)
    begun(directory, 0.0)
    return directory


def test_the_first_topology_waits_for_enough_nodes() -> None:
    directory = Directory(SETTINGS)
    heard(directory, "a", 0, 0.0)
    assert directory.decide(0.0) == Wait("waiting for 2 more nodes")
    heard(directory, "b", 0, 1.0)
    assert directory.decide(1.0) == Wait("waiting for 1 more node")
    heard(directory, "c", 0, 2.0)
    plan = directory.decide(2.0)
    assert isinstance(plan, Plan)
    assert (plan.number, plan.start, plan.members, plan.adopting) == (1, 0, (0, 1, 2), frozenset())


def test_each_node_of_a_ring_has_metropolis_weights(directory: Directory) -> None:
    assert directory.topology is not None
    assert directory.topology.assignment(0) == Assignment(
        topology=1, start=0, member=0, cycle=directory.topology.assignment(0).cycle, since={1: 1, 2: 1}
    )
    for place in range(len(directory.topology.cycle)):
        for member in (0, 1, 2):
            for peer, weight in directory.topology.assignment(member).cycle[place].items():
                assert directory.topology.assignment(peer).cycle[place][member] == weight


def test_a_newcomer_gets_a_topology_that_begins_after_all_have_heard_of_it(directory: Directory) -> None:
    now = trained(directory, "abc", beats=3, per_beat=20)
    assert heard(directory, "d", 0, now) == 3
    formed = begun(directory, now)
    assert formed.plan.start == 60 + 2 + 3 * 20  # the furthest, the least lead, three beats
    assert formed.plan.members == (0, 1, 2, 3)
    assert formed.plan.adopting == {3}
    assert formed.plan.reason == "came: d"
    assert not formed.assignment(0).adopts
    assert formed.assignment(3).adopts


def test_a_node_that_leaves_or_is_lost_is_in_the_next_topology_no_more(directory: Directory) -> None:
    heard(directory, "d", 0, 0.0)
    now = trained(directory, "abcd", beats=2, per_beat=20)
    begun(directory, now)
    directory.leave("b")
    now = trained(directory, "acd", beats=1, per_beat=20, since=now)
    formed = begun(directory, now)
    assert (formed.plan.members, formed.plan.reason) == ((0, 2, 3), "gone: b")
    later = now + LOST_S
    assert directory.lose(later - 0.1) == []
    for node in "ac":
        heard(directory, node, 100, later - 0.1)
    assert directory.lose(later) == ["d"]
    assert begun(directory, later).plan.members == (0, 2)


def test_changes_are_collected_for_a_beat(directory: Directory) -> None:
    now = trained(directory, "abc", beats=2, per_beat=20)
    heard(directory, "d", 0, now)
    begun(directory, now)
    heard(directory, "e", 0, now + 1)
    assert directory.decide(now + 1) == Wait("the newest topology is younger than a beat")
    assert directory.why_left_out(directory.by_node["e"], now + 1) == "the newest topology is younger than a beat"
    heard(directory, "f", 0, now + 2)
    assert begun(directory, now + BEAT_S).plan.members == (0, 1, 2, 3, 4, 5)


def test_a_member_that_two_peers_miss_is_left_out_and_comes_back(directory: Directory) -> None:
    now = trained(directory, "abc", beats=2, per_beat=20)
    heard(directory, "a", 40, now, missed=(1,))
    heard(directory, "a", 40, now, missed=(1,))
    assert directory.decide(now) == Wait("no member has come or gone")  # one peer alone is not believed
    heard(directory, "c", 40, now, missed=(1,))
    assert begun(directory, now).plan.members == (0, 2)
    heard(directory, "b", 40, now + 1)
    assert "have waited for its messages in vain" in directory.why_left_out(directory.by_node["b"], now + 1)
    now = trained(directory, "abc", beats=2, per_beat=20, since=now)
    assert begun(directory, now).plan.members == (0, 1, 2)
    for node in "ac":
        heard(directory, node, 80, now + BEAT_S, missed=(1,))
    assert begun(directory, now + BEAT_S).plan.members == (0, 2)
    now = trained(directory, "abc", beats=3, per_beat=20, since=now + BEAT_S)
    assert directory.decide(now) == Wait("no member has come or gone")  # it rests for longer each time


def test_the_furthest_begin_again_if_all_others_are_lost(directory: Directory) -> None:
    now = trained(directory, "abc", beats=2, per_beat=20)
    heard(directory, "b", 43, now)
    now += LOST_S
    directory.lose(now)
    assert directory.decide(now) == Wait("no node is there")
    heard(directory, "d", 0, now)
    formed = begun(directory, now)
    assert (formed.plan.start, formed.plan.adopting) == (0, frozenset())  # it is alone, and begins with what there is
    directory.leave("d")
    heard(directory, "b", 43, now)
    heard(directory, "c", 40, now)
    formed = begun(directory, now + BEAT_S)
    assert (formed.plan.start, formed.plan.members) == (43, (1, 2))
    assert formed.plan.adopting == {2}


def test_all_deposit_when_all_have_done_their_iterations(directory: Directory) -> None:
    for node, iteration in (("a", 10_000), ("b", 10_000), ("c", 9_999)):
        heard(directory, node, iteration, BEAT_S)
    assert isinstance(directory.decide(BEAT_S), Wait)
    heard(directory, "d", 0, BEAT_S)
    assert directory.decide(BEAT_S) == Wait("came: d; a new topology would begin after the last iteration")
    heard(directory, "c", 10_000, BEAT_S)
    assert directory.decide(BEAT_S) == Collect("3 nodes have done all 10000 iterations")
    directory.phase = Phase.COLLECTING
    assert directory.decide(BEAT_S) == Wait("the run is collecting")


def test_a_node_is_told_the_places_of_peers_that_are_new_or_have_moved(directory: Directory) -> None:
    def unknown(node: str, topology: int) -> list[int]:
        part = assigned(directory, node)
        assert part is not None
        return directory.unknown_places(part, topology)

    assert unknown("a", 0) == [1, 2]
    now = trained(directory, "abc", beats=2, per_beat=20)
    heard(directory, "d", 0, now)
    begun(directory, now)
    assert unknown("a", 1) == [3]  # of 1 and 3
    assert unknown("a", 0) == [1, 3]
    assert unknown("b", 1) == []
    directory.hear(Heard("b", 2, 60, address="192.0.2.1:7710"), now)
    heard(directory, "d", 70, now)
    now = trained(directory, "acd", beats=1, per_beat=20, since=now)
    directory.hear(Heard("b", 2, 80, address="192.0.2.1:7710"), now)
    heard(directory, "e", 0, now)
    begun(directory, now)
    assert unknown("a", 2) == [1, 4]  # one has moved, the other is new
    assert unknown("a", 3) == []


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (Heard("a", 2, 50), "names topology 2, but this coordinator's newest is 1"),
        (Heard("a", 1, 10_001), "names iteration 10001, but the run has 10000"),
        (Heard("a", 1, 39), "names iteration 39, but this node has reported 40 before"),
    ],
)
def test_impossible_reports_are_refused(directory: Directory, report: Heard, why: str) -> None:
    trained(directory, "abc", beats=2, per_beat=20)
    before = repr((directory.plain_members(), directory.plain_topology()))
    assert why in directory.why_refuse(report)
    assert repr((directory.plain_members(), directory.plain_topology())) == before


def test_a_directory_goes_on_from_disk(directory: Directory) -> None:
    now = trained(directory, "abc", beats=2, per_beat=20)
    heard(directory, "d", 0, now)
    formed = begun(directory, now)
    plain = msgpack.unpackb(msgpack.packb([directory.plain_topology(), directory.plain_members()]))
    restored = Directory.from_plain(SETTINGS, plain[0], plain[1], now=5.0)
    assert restored.topology == formed
    assert restored.plain_members() == directory.plain_members()
    assert restored.lose(5.0 + LOST_S - 1) == []
    for node in "abc":
        heard(restored, node, 60, 5.0 + LOST_S - 1)
    assert restored.lose(5.0 + LOST_S) == ["d"]
    assert heard(restored, "e", 0, 5.0 + LOST_S) == 4


def test_a_member_that_is_not_back_at_a_restarted_coordinator_is_missed_only_after_its_first_report(
    directory: Directory,
) -> None:
    now = trained(directory, "abc", beats=2, per_beat=20)
    directory = Directory.from_plain(SETTINGS, directory.plain_topology(), directory.plain_members(), now)
    for node in "ac":
        heard(directory, node, 40, now, missed=(1,))
    assert directory.decide(now + BEAT_S) == Wait("no member has come or gone")
    for node in "bac":
        heard(directory, node, 60, now + BEAT_S, missed=() if node == "b" else (1,))
    assert begun(directory, now + BEAT_S).plan.members == (0, 2)


@pytest.mark.parametrize("plain", [([], [1]), ([1], [0, "training", []]), ([], [0, "asleep", []])])
def test_a_damaged_directory_is_not_read(plain: tuple[object, object]) -> None:
    with pytest.raises(Damaged, match="directory of members"):
        Directory.from_plain(SETTINGS, plain[0], plain[1], now=0.0)


def test_a_node_that_begins_anew_gets_another_number_and_its_old_edges_end(directory: Directory) -> None:
    now = trained(directory, "abc", beats=2, per_beat=5)
    old = directory.by_node["b"].member
    assert "remove gossip.safetensors" in directory.why_refuse(Heard("b", 1, 4))
    new = heard(directory, "b", 0, now)
    assert new == 3
    assert directory.of_member(old) is None
    assert assigned(directory, "b") is None
    formed = begun(directory, now + BEAT_S)
    assert formed.plan.members == (0, 2, new)
    assert formed.plan.adopting == {new}
    assert not any(old in edge for edge in formed.edges)
    assert all(since == formed.plan.number for edge, since in formed.edges.items() if new in edge)
    packed = msgpack.packb([directory.plain_topology(), directory.plain_members()])
    topology, members = msgpack.unpackb(packed)
    again = Directory.from_plain(SETTINGS, topology, members, 0.0)
    assert heard(again, "b", 0, 1.0) == new
