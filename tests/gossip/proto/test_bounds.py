"""What a peer can do to a node in a gossip run: honest ones nothing that is seen, hostile ones little."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from support.member_world import MemberWorld
from support.members import LAYOUT
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.bounds import FAR_TURNS, RADIUS_WHOLE_NUMBERS, MixBounds
from thinwire_proto.gossip.member_state import MemberSettings

PARAMETERS, SIZE = 256, 0.01
BOUNDED = MemberSettings("dense", 1.0, 0, 1e6, is_bounded=True)
"""Patient: what a run computes does not depend on time."""
STEP = SIZE * PARAMETERS**0.5
"""The norm of a step, about."""


def step_of(node: int, x: Tensor, iteration: int) -> Tensor:
    """A step as AdamW makes it: each number by about SIZE, smaller in the warm-up; half of it drawn for each node."""
    generator = torch.Generator().manual_seed(1000 * iteration + node)
    towards = torch.linspace(-1, 1, PARAMETERS) - x
    return SIZE * min(1.0, (iteration + 1) / 10) * (towards + 0.5 * torch.randn(x.shape, generator=generator)).sign()


def world_of(nodes: int, settings: MemberSettings, **given: object) -> MemberWorld:
    return MemberWorld(nodes, settings, parameters=PARAMETERS, step=step_of, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [4, 16])
@pytest.mark.parametrize("codec", ["dense", "int8", "sign"])
def test_honest_nodes_compute_the_same_bits_with_bounds_and_without(codec: str, nodes: int) -> None:
    worlds = [
        world_of(nodes, replace(BOUNDED, codec=codec, is_bounded=is_bounded), iterations=25)
        for is_bounded in (True, False)
    ]
    for world in worlds:
        world.run()
    for number, node in worlds[0].nodes.items():
        assert node.finished[-1][1] == 24
        assert torch.equal(node.member.x, worlds[1].nodes[number].member.x)


def distance_of_honest(change: Callable[[Tensor], object], settings: MemberSettings) -> tuple[float, MemberWorld]:
    """Node 3 of four is hostile. How far the worst of the others ends from where it ends alone with honest ones, in
    steps."""
    alone, world = world_of(3, settings), world_of(4, settings, hostile={3: change})
    for one in (alone, world):
        one.run()
    mean = torch.stack([node.member.x for node in alone.nodes.values()]).mean(0)
    return max(float((world.nodes[node].member.x - mean).norm()) for node in range(3)) / STEP, world


@pytest.mark.parametrize("codec", ["dense", "int8", "sign"])
@pytest.mark.parametrize(
    ("change", "is_left_out"),
    [
        (lambda x: x.fill_(1e3), True),
        (lambda x: x.fill_(-1e9), True),
        (lambda x: x[:3].fill_(1e3), True),
        (lambda x: x.fill_(3.0), True),
        (lambda x: x.add_(0.5 * SIZE), False),
    ],
    ids=["1e3 everywhere", "-1e9 everywhere", "1e3 in three numbers", "3.0 everywhere", "drift"],
)
def test_one_hostile_node_of_four_moves_the_others_by_few_steps(
    change: Callable[[Tensor], object], is_left_out: bool, codec: str
) -> None:
    found, world = distance_of_honest(change, replace(BOUNDED, codec=codec))
    assert found < 6  # alone, they end at most 2 apart
    for number, left_out in ((0, set[int]()), (1, {3}), (2, {3})):  # node 0 has no edge with the hostile one
        node = world.nodes[number]
        assert node.finished[-1][1] == 39
        assert node.unreadable.keys() == (left_out if is_left_out else set())
        assert all("steps away" in why for why in node.unreadable.values())


def test_without_bounds_the_same_node_ends_the_model() -> None:
    found, _ = distance_of_honest(lambda x: x.fill_(1e3), replace(BOUNDED, is_bounded=False))
    assert found > 1e4


def test_a_peer_at_the_bound_for_ever_does_not_raise_it() -> None:
    """Mixed by a half, it moves the node by half of the radius, and by so much the honest peer is away then."""
    bounds = bounds_after(torch.ones(8))
    first = bounds.radius()
    for _ in range(500):
        away = 0.99 * bounds.radius() / 8**0.5
        bounds.clip_(1, torch.full((8,), away))
        bounds.clip_(2, torch.full((8,), away / 2))
    assert bounds.radius() == first


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_member_clips_as_if_it_had_not_been_killed(seed: int) -> None:
    hostile = {3: lambda x: x.add_(20 * SIZE)}
    plain, world = (world_of(4, replace(BOUNDED, codec="sign"), hostile=hostile) for _ in range(2))
    rng, at = random.Random(seed), 0.0
    for _ in range(6):
        at += rng.uniform(0.5, 6.0)
        victim = rng.randrange(3)
        world.at(at, partial(world.kill, victim))
        at += rng.uniform(0.0, 3.0)
        world.at(at, partial(world.restart, victim))
    for one in (plain, world):
        one.run()
    for number, node in world.nodes.items():
        assert torch.equal(node.member.x, plain.nodes[number].member.x), number


def test_nodes_that_have_been_apart_come_together() -> None:
    """Two pairs begin as if each had trained for 30 iterations without the other."""
    world = world_of(4, replace(BOUNDED, patience_s=5.0), iterations=80)
    for node in (2, 3):
        world.nodes[node].member.x.add_(30 * SIZE)  # before the first message is made
        world.nodes[node].member._first.add_(30 * SIZE)
    world.run()
    ends = torch.stack([node.member.x for node in world.nodes.values()])
    assert float((ends - ends.mean(0)).norm(dim=1).max()) < 3 * STEP
    assert not any(node.unreadable for node in world.nodes.values())


# the bounds by themselves


def bounds_after(step: Tensor) -> MixBounds:
    bounds = MixBounds(LAYOUT, RADIUS_WHOLE_NUMBERS)
    bounds.stepped(step)
    return bounds


def test_a_difference_within_the_radius_is_not_touched_and_one_beyond_it_is_shortened() -> None:
    bounds = bounds_after(torch.full((8,), 0.5))
    within = torch.linspace(-3, 2, 8)
    assert torch.equal(bounds.clip_(1, within.clone()), within)
    beyond = bounds.clip_(1, torch.full((8,), 30.0))
    assert torch.allclose(beyond, torch.full((8,), 0.5 * RADIUS_WHOLE_NUMBERS))


def test_a_peer_beyond_the_radius_for_long_is_left_out_and_one_that_comes_back_is_not() -> None:
    bounds, far, near = bounds_after(torch.ones(8)), torch.full((8,), 10.0), torch.ones(8)
    for _ in range(FAR_TURNS - 1):
        bounds.clip_(1, far.clone())
    bounds.clip_(1, near.clone())
    for _ in range(FAR_TURNS - 1):
        bounds.clip_(1, far.clone())
    with pytest.raises(PayloadError, match=f"{FAR_TURNS} turns in a row"):
        bounds.clip_(1, far.clone())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3e38, 1e5])
def test_absurd_parameters_are_refused_at_once(number: float) -> None:
    with pytest.raises(PayloadError, match=r"not finite|steps away"):
        bounds_after(torch.ones(8)).clip_(1, torch.full((8,), number))


def test_what_is_saved_goes_on_the_same() -> None:
    bounds = bounds_after(torch.linspace(0, 1, 8))
    for peer, size in ((1, 3.0), (2, 40.0), (1, 5.0)):
        bounds.clip_(peer, torch.full((8,), size))
    again = MixBounds(LAYOUT, RADIUS_WHOLE_NUMBERS)
    again.load(bounds.tensors())
    for name, tensor in bounds.tensors().items():
        assert torch.equal(again.tensors()[name].nan_to_num(), tensor.nan_to_num()), name


def test_a_far_copy_pulls_a_gradient_no_further_than_a_near_one() -> None:
    bounds, x = bounds_after(torch.ones(8)), torch.zeros(8)
    near = torch.full((8,), 5.0)
    assert bounds.clipped_copy(x, near) is near
    assert torch.allclose(bounds.clipped_copy(x, torch.full((8,), 1e3)), torch.full((8,), 2 * RADIUS_WHOLE_NUMBERS))
