"""Changes of codec and `every` in a gossip run: copies stay equal, and all edges are used."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from support.member_world import MemberWorld
from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.codec import make_codec
from thinwire_proto.gossip.consensus import LEVELS, Level, ladder_of
from thinwire_proto.gossip.levels import Levels
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.peer_wire import body_bytes_max

CONTROLLED = MemberSettings("sign", 1.0, 0, 1e6, is_controlled=True)


def drawn_step(node: int, x: Tensor, iteration: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * iteration + node)
    return 0.1 * torch.randn(x.shape, generator=generator) - 0.05 * x


def tell(world: MemberWorld, level: Level, start: int, late: int | None = None, late_s: float = 0.0) -> None:
    """Tell all members of a level now; one of them may hear later."""
    for number in world.nodes:
        say = partial(hears, world, number, level, start)
        world.at(world.now + (late_s if number == late else 0.0), say)


def hears(world: MemberWorld, number: int, level: Level, start: int) -> None:
    if (node := world.nodes.get(number)) is not None:
        node.member.take_level(level, start)


def copies_of(member: Member, peer: int) -> Any:
    return member._copies.edges[peer]


def assert_copies_equal(world: MemberWorld) -> None:
    """At the end of a run, when all messages of all turns are read."""
    edges = differences = 0
    for number, node in world.nodes.items():
        for peer in node.member.peers:
            mine, theirs = copies_of(node.member, peer), copies_of(world.nodes[peer].member, number)
            if mine.own.sequence == theirs.theirs.sequence:
                assert torch.equal(mine.own.flat, theirs.theirs.flat)
                edges += 1
            differences += mine.differences_found
    assert edges >= 2 * len(world.nodes)
    assert differences == 0


@pytest.mark.parametrize("topology", ["ring", "one-peer-exponential", "complete"])
def test_copies_stay_equal_and_the_mean_stays_over_all_levels(topology: str) -> None:
    world = MemberWorld(8, CONTROLLED, topology=topology, lost=0.05, iterations=120, parameters=200)
    for number, node in world.nodes.items():
        node.member.x.add_(number)
    before = torch.stack([node.member.x for node in world.nodes.values()]).double().mean(0)
    for place, level in enumerate([*reversed(LEVELS), *LEVELS]):
        start = 8 * (place + 1)
        world.at(max(0.2, start / 2), partial(tell, world, level, start))
    world.run()
    assert {node.finished[-1][1] for node in world.nodes.values()} == {119}
    assert_copies_equal(world)
    after = torch.stack([node.member.x for node in world.nodes.values()]).double().mean(0)
    assert float((after - before).abs().max()) < 1e-6 * float(before.abs().max())


def test_a_member_that_hears_too_late_loses_turns_and_nothing_else() -> None:
    settings = MemberSettings("sign", 1.0, 0, 4.0, is_controlled=True)
    world = MemberWorld(8, settings, iterations=120, parameters=200)
    for number, node in world.nodes.items():
        node.member.x.add_(number)
    before = torch.stack([node.member.x for node in world.nodes.values()]).double().mean(0)
    world.at(8.0, partial(tell, world, Level("sign", 8), 10, 3, 30.0))
    world.at(60.0, partial(tell, world, Level("dense", 1), 70, 5, 30.0))
    world.run()
    assert {node.finished[-1][1] for node in world.nodes.values()} == {119}
    assert_copies_equal(world)
    assert all(len(node.member.peers) == 3 for node in world.nodes.values())  # nobody is taken for a bad peer
    after = torch.stack([node.member.x for node in world.nodes.values()]).double().mean(0)
    assert float((after - before).abs().max()) < 1e-6 * float(before.abs().max())


def test_a_member_that_is_killed_keeps_its_levels() -> None:
    def run(*, kills: bool) -> MemberWorld:
        world = MemberWorld(6, CONTROLLED, topology="ring", iterations=60, step=drawn_step)
        world.at(5.0, partial(tell, world, Level("int8", 1), 16))
        world.at(30.0, partial(tell, world, Level("sign", 4), 40))
        for at, number in ((12.0, 1), (25.0, 2), (50.0, 4)) if kills else ():
            world.at(at, partial(world.kill, number))
            world.at(at + 1.0, partial(world.restart, number))
        world.run()
        return world

    plain, killed = run(kills=False), run(kills=True)
    for number, node in killed.nodes.items():
        assert torch.equal(node.member.x, plain.nodes[number].member.x), number
        assert node.member.head == plain.nodes[number].member.head


def test_each_edge_of_a_cycle_is_used_when_only_one_of_eight_iterations_exchanges() -> None:
    assignment = Assignment(1, 3, 0, tuple({peer: 0.5} for peer in (1, 2, 4, 8)), dict.fromkeys((1, 2, 4, 8), 1))
    for every in (1, 2, 4, 8):
        levels = Levels(Level("sign", every))
        used = [peer for iteration in range(8, 8 + 8 * every) for peer in levels.turns(assignment, iteration)]
        assert len(used) == 8
        assert set(used) == {1, 2, 4, 8}, every


def test_a_level_holds_from_its_start_and_never_in_what_has_begun() -> None:
    levels, dense, int8 = Levels(Level("sign")), Level("dense"), Level("int8")
    levels.take(dense, start=40, following=30)
    levels.take(dense, start=40, following=31)  # told again
    assert [levels.at(iteration).codec for iteration in (0, 39, 40, 99)] == ["sign", "sign", "dense", "dense"]
    levels.take(int8, start=50, following=60)
    assert [levels.at(iteration).codec for iteration in (49, 59, 60)] == ["dense", "dense", "int8"]
    assert Levels.from_plain(levels.plain()).plain() == levels.plain()
    levels.forget(45)
    assert [levels.at(iteration).codec for iteration in (45, 60)] == ["dense", "int8"]
    assert len(levels.plain()) == 2


@pytest.mark.parametrize("codec", ["sign", "dct-sign", "int8", "topk:1", "topk:64"])
def test_a_message_may_be_as_long_as_the_ladders_largest(codec: str) -> None:
    layout = TileLayout([Parameter(name="x", shape=(300, 200))])
    largest = max(make_codec(level.codec, layout).bytes_max for level in ladder_of(codec, 1)[0])
    assert body_bytes_max(layout, codec, is_controlled=True) >= largest
    assert body_bytes_max(layout, codec) >= make_codec("dense", layout).bytes_max  # a snapshot
