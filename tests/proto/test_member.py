"""Members of a swarm without a centre: kills, lossy lines, changing topologies."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import Tensor

from support.member_world import MemberWorld
from thinwire_proto.gossip.member import MemberSettings
from thinwire_proto.gossip.peer_wire import header_of, message_of

PATIENT = MemberSettings("dense", 1.0, 0, 1e6)
IMPATIENT = MemberSettings("sign", 1.0, 0, 5.0)


def drawn_step(node: int, x: Tensor, iteration: int) -> Tensor:
    """A step that depends on node, parameters and iteration."""
    generator = torch.Generator().manual_seed(1000 * iteration + node)
    return 0.1 * torch.randn(x.shape, generator=generator) - 0.05 * x


def mean_of(world: MemberWorld) -> Tensor:
    return torch.stack([node.member.x for node in world.nodes.values()]).double().mean(0)


@pytest.mark.parametrize("codec", ["dense", "sign", "int8"])
def test_copies_of_both_ends_are_equal_and_the_mean_stays(codec: str) -> None:
    settings = MemberSettings(codec, 1.0, 0, 1e6)
    world = MemberWorld(8, settings, lost=0.05, seed=1, line_s=lambda a, b: 0.1 + 0.01 * (a + b))
    for number, node in world.nodes.items():
        node.member.x.add_(number)  # before the first message is made
    before = mean_of(world)
    world.run()
    assert {node.finished[-1][1] for node in world.nodes.values()} == {39}
    assert float((mean_of(world) - before).abs().max()) < 1e-6 * float(before.abs().max())


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_member_goes_on_as_if_it_had_not_been_killed(seed: int) -> None:
    """Without patience and slack, what a run computes does not depend on time. So kills and losses change no bit."""
    plain = MemberWorld(6, PATIENT, step=drawn_step, topology="ring", seed=seed)
    plain.run()
    rng = random.Random(seed)
    world = MemberWorld(6, PATIENT, step=drawn_step, topology="ring", lost=0.05, seed=seed)
    at = 0.0
    for _ in range(8):
        at += rng.uniform(0.5, 6.0)  # the first state is on disk by then
        victim = rng.randrange(6)
        world.at(at, partial(world.kill, victim))
        at += rng.uniform(0.0, 3.0)
        world.at(at, partial(world.restart, victim))
    world.run()
    for number, node in world.nodes.items():
        assert torch.equal(node.member.x, plain.nodes[number].member.x), number
        assert node.member.head == plain.nodes[number].member.head
        assert node.heads == plain.nodes[number].heads


def test_two_of_eight_die_and_two_join_and_nobody_waits_longer_than_the_patience() -> None:
    world = MemberWorld(8, IMPATIENT, step=drawn_step, iterations=60)
    world.at(10.3, partial(world.kill, 2))
    world.at(14.7, partial(world.kill, 5))
    world.at(22.0, partial(world.forget, 2))
    world.at(22.0, partial(world.forget, 5))
    world.at(28.0, world.join)
    world.at(33.0, world.join)
    world.run()
    assert sorted(world.nodes) == [0, 1, 3, 4, 6, 7, 8, 9]
    for node in world.nodes.values():
        assert node.finished[-1][1] == 59
        assert max(node.waited_s) <= IMPATIENT.patience_s + 1.0
    spread = torch.stack([node.member.x for node in world.nodes.values()]).std(0).max()
    assert float(spread) < 1.0  # the newcomers are with the others


def test_a_newcomer_begins_with_the_parameters_of_its_first_peer() -> None:
    world = MemberWorld(4, PATIENT, iterations=20)
    for node in world.nodes.values():
        node.member.x.fill_(7.0)
    world.at(5.0, world.join)
    world.run()
    assert torch.allclose(world.nodes[4].member.x, torch.full_like(world.nodes[4].member.x, 7.0))
    assert world.nodes[4].finished[-1][1] == 19


def test_a_message_keeps_all_its_fields_over_the_wire() -> None:
    world = MemberWorld(2, IMPATIENT)
    world.run(0.15)
    messages = [message for number in (0, 1) for message in world.nodes[number].member.unacknowledged(1 - number)]
    assert len(messages) == 2
    for message in messages:
        assert message_of(header_of(message), message.body) == message
