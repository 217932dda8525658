"""Members move to places where an iteration is shorter, if that pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.directed_world import DirectedWorld
from support.small import small_contract
from thinwire_coordinator.gossip.directory import MEASURED_ITERATIONS, MOVE_EVERY, Directory, DirectorySettings, Wait
from thinwire_coordinator.gossip.formation import FormedTopology, Moving, Plan, form, present
from thinwire_coordinator.gossip.measured_lines import MeasuredLines
from thinwire_coordinator.gossip.moving import move
from thinwire_coordinator.gossip.participants import Heard
from thinwire_coordinator.gossip.settings import gossip_settings
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.seen_lines import SeenEdge, SeenLines

NODES, BEAT_S = 8, 10.0
KIND = "tree"
FAST_S, SLOW_S = 0.2, 4.0
"""A message that a node sends over a fast and over a slow line."""


def message_s(sender: int, receiver: int) -> float:
    """The first members have slow lines. They stand in the middle of the tree, where each sends to three others."""
    return SLOW_S if sender < 3 else FAST_S


def seen(receiver: int, *senders: int) -> SeenLines:
    edges = [SeenEdge(sender, "direct", 5, round(1000 * message_s(sender, receiver))) for sender in senders]
    return SeenLines(edges=tuple(edges))


def plan(number: int = 2, *, iterations_left: int = 1000, snapshot_messages: float = 1.0) -> Plan:
    members = tuple(range(NODES))
    seconds = np.asarray([[message_s(sender, receiver) for receiver in members] for sender in members])
    np.fill_diagonal(seconds, 0.0)
    moving = Moving(seconds, np.full(NODES, 1.0), snapshot_messages, iterations_left)
    return Plan(number, 40, members, frozenset(), "better places are looked for", moving)


def first() -> FormedTopology:
    return form(KIND, replace(plan(1), moving=None, start=0))


RING = form("ring", replace(plan(1), moving=None, start=0))
"""A topology in which each member sends one message at a time."""

# what is known of the lines


def test_a_pair_without_an_edge_is_as_fast_as_the_fastest_messages_of_its_ends() -> None:
    lines = MeasuredLines()
    lines.take(0, (SeenEdge(1, "direct", 1, 300), SeenEdge(2, "direct", 1, 100)), RING)
    lines.take(3, (SeenEdge(1, "direct", 1, 700), SeenEdge(2, "relay", None, None)), RING)
    found = lines.matrix([0, 1, 2, 3])
    assert found[1, 0] == 0.3
    assert found[2, 3] == pytest.approx(0.7)  # from 2: 0.1 at best; to 3: 0.7 at best
    assert not lines.are_known([(1, 0), (2, 3)])
    assert lines.are_known([(1, 0), (1, 3)])


def test_messages_that_are_sent_at_once_share_a_line() -> None:
    lines = MeasuredLines()
    lines.take(0, (SeenEdge(1, "direct", 1, 300), SeenEdge(7, "direct", 1, 300)), first())
    assert lines.matrix([0, 1, 7])[1, 0] == pytest.approx(0.1)  # with those to two others
    assert lines.matrix([0, 1, 7])[2, 0] == 0.3  # a leaf


def test_members_that_have_gone_are_forgotten() -> None:
    lines = MeasuredLines()
    lines.take(0, (SeenEdge(1, "direct", 1, 300), SeenEdge(2, "direct", 1, 100)), RING)
    lines.keep({0, 2})
    assert lines.are_known([(2, 0)])
    assert not lines.are_known([(1, 0)])


# whether moving pays


def test_members_move_to_where_an_iteration_is_shorter() -> None:
    formed = move(KIND, plan(), first())
    assert formed is not None
    assert sorted(present(formed.places)) == list(range(NODES))
    assert formed.plan.reason == "at these places, an iteration is expected to take 4 s in place of 12 s"


def test_edges_that_stay_go_on_and_new_ones_begin() -> None:
    formed = move(KIND, plan(), first())
    assert formed is not None
    for edge, since in formed.edges.items():
        assert since == (1 if edge in first().edges else 2)


def test_they_stay_if_snapshots_take_longer_than_is_gained() -> None:
    """A dense snapshot is as long as 32 messages of one bit a parameter."""
    assert move(KIND, plan(iterations_left=20, snapshot_messages=32), first()) is None
    assert move(KIND, plan(iterations_left=100, snapshot_messages=32), first()) is not None
    assert move(KIND, plan(iterations_left=20, snapshot_messages=1), first()) is not None


def test_they_stay_if_an_iteration_becomes_hardly_shorter() -> None:
    """On a graph where each line carries one message an iteration, the slowest line decides, wherever it is."""
    older = form("ring", replace(plan(1), moving=None, start=0))
    assert move("ring", plan(), older) is None


def test_they_stay_where_they_stand_well() -> None:
    moved = move(KIND, plan(), first())
    assert moved is not None
    assert move(KIND, plan(3), moved) is None


def test_gaps_stay_gaps() -> None:
    whole = plan(3)
    assert whole.moving is not None
    members = whole.members[:-1]
    gapped = form(KIND, replace(plan(2), members=members, moving=None), first())
    fewer = replace(whole.moving, message_s=whole.moving.message_s[:-1, :-1], computing_s=whole.moving.computing_s[:-1])
    moved = move(KIND, replace(whole, members=members, moving=fewer), gapped)
    assert moved is not None
    assert sorted(present(moved.places)) == list(members)
    assert [one is None for one in moved.places] == [one is None for one in gapped.places] == [False] * 7 + [True]


# when the directory looks


def directory_of(iteration: int, steps: int = 1000, snapshot_messages: float = 1.0) -> Directory:
    """A directory whose members have done so many iterations of the first topology, and have reported all lines."""
    directory = Directory(DirectorySettings(KIND, NODES, NODES, BEAT_S, steps, snapshot_messages))
    for member in range(NODES):
        directory.hear(Heard(str(member), 0, 0), 0.0)
    decided = directory.decide(0.0)
    assert isinstance(decided, Plan)
    directory.begin(form(KIND, decided), 0.0)
    for member in range(NODES):
        known = directory.hear(Heard(str(member), 1, iteration, is_genesis=False), 100.0)
        known.computing_s = 1.0
        directory.see(str(member), seen(member, *(peer for peer in range(NODES) if peer != member)))
    return directory


def test_it_looks_once_the_lines_of_a_topology_are_measured() -> None:
    assert isinstance(directory_of(MEASURED_ITERATIONS - 1).decide(110.0), Wait)
    decided = directory_of(MEASURED_ITERATIONS).decide(110.0)
    assert isinstance(decided, Plan)
    assert decided.moving is not None
    assert decided.start > MEASURED_ITERATIONS


def settings_with(**exchange: object) -> DirectorySettings:
    layers = {"schedule": {"steps": 100, "warmup_steps": 1, "learning_rate": 1e-3}, "rule": {"kind": "adamw"}}
    found = gossip_settings(small_contract(**layers, exchange={"kind": "gossip", **exchange}), 2)
    assert found is not None
    return found.directory


def test_it_does_not_look_with_slack_or_where_the_codec_changes() -> None:
    assert isinstance(directory_of(MEASURED_ITERATIONS, snapshot_messages=0.0).decide(110.0), Wait)
    assert settings_with(slack=1).snapshot_messages == 0
    assert settings_with(consensus_target=3.0).snapshot_messages == 0
    assert settings_with(codec="sign").snapshot_messages == pytest.approx(64, rel=0.1)
    assert settings_with(codec="dense").snapshot_messages == pytest.approx(2, rel=0.1)


def test_it_does_not_look_while_a_line_is_unknown() -> None:
    directory = directory_of(MEASURED_ITERATIONS)
    directory.measured_lines.keep(set(range(NODES - 1)))
    assert isinstance(directory.decide(110.0), Wait)


def test_lines_to_nodes_that_are_no_members_are_not_kept() -> None:
    directory = directory_of(MEASURED_ITERATIONS)
    kept = len(directory.measured_lines)
    directory.see("0", SeenLines(edges=tuple(SeenEdge(number, "direct", 1, 1) for number in (0, 99, 1 << 31))))
    assert len(directory.measured_lines) == kept


def test_it_does_not_look_right_before_the_end() -> None:
    assert isinstance(directory_of(MEASURED_ITERATIONS, steps=MEASURED_ITERATIONS + 2).decide(110.0), Wait)


def test_if_nothing_is_gained_it_looks_again_later() -> None:
    directory = directory_of(MEASURED_ITERATIONS)
    directory.stay()
    assert isinstance(directory.decide(110.0), Wait)
    for member in range(NODES):
        directory.hear(Heard(str(member), 1, MEASURED_ITERATIONS + MOVE_EVERY, is_genesis=False), 200.0)
    assert isinstance(directory.decide(210.0), Plan)


def test_a_member_that_comes_goes_before_better_places() -> None:
    directory = directory_of(MEASURED_ITERATIONS)
    directory.hear(Heard("newcomer", 0, 0), 110.0)
    decided = directory.decide(110.0)
    assert isinstance(decided, Plan)
    assert decided.moving is None
    assert decided.reason.startswith("came")


# a whole run


def play(snapshot_messages: float) -> DirectedWorld:
    world = DirectedWorld(
        NODES,
        MemberSettings("dense", 1.0, 0, 30.0),
        beat_s=BEAT_S,
        nodes_max=NODES,
        snapshot_messages=snapshot_messages,
        topology=KIND,
        iterations=200,
        lost=0.01,
        line_s=lambda source, target: 0.05,
        sending_s=message_s,
        compute_s=lambda node, iteration: 1.0 + 0.1 * ((node * 31 + iteration * 17) % 16) / 16,
    )
    world.run()
    return world


def test_a_run_whose_members_move_ends_sooner_and_nothing_is_lost() -> None:
    staying, moving = play(snapshot_messages=0.0), play(snapshot_messages=1.0)
    assert len(staying.reasons) == 1
    assert ["in place of" in reason for reason in moving.reasons] == [False, True]  # one move finds the good places
    for world in (staying, moving):
        assert all(node.finished[-1][1] == 199 for node in world.nodes.values())
        moved, alone = world.moved()
        assert not alone
        assert float(moved.abs().max()) < 1e-4
        compared, differing = world.copies()
        assert compared
        assert not differing
    assert moving.now < 0.6 * staying.now
