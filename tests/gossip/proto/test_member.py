"""Members of a gossip run: kills, lossy lines, changing topologies."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from support.member_world import MemberWorld, SimulatedNode
from support.members import FIRST, begun, member, mixed, turns
from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.message import Message
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
def test_the_mean_stays_while_lines_lose_and_repeat(codec: str) -> None:
    settings = MemberSettings(codec, 1.0, 0, 1e6)
    world = MemberWorld(8, settings, lost=0.05, seed=1, line_s=lambda a, b: 0.1 + 0.01 * (a + b))
    for number, node in world.nodes.items():
        node.member.x.add_(number)  # before the first message is made
    before = mean_of(world)
    world.run()
    assert {node.finished[-1][1] for node in world.nodes.values()} == {39}
    assert float((mean_of(world) - before).abs().max()) < 1e-6 * float(before.abs().max())
    compared, differing = world.copies()
    assert compared > 8
    assert differing == []


@pytest.mark.parametrize("slack", [1, 2])
def test_members_come_together_though_messages_are_late(slack: int) -> None:
    """To mix the whole of a difference that is old would drive them apart (`late_factor`)."""
    settings = MemberSettings("dense", 1.0, slack, 1e6)
    world = MemberWorld(4, settings, topology="complete", line_s=lambda a, b: 0.9 + slack, iterations=60)
    for number, node in world.nodes.items():
        node.member.x.add_((-1) ** number)
    world.run()
    mean = mean_of(world)
    assert max(float((node.member.x - mean).abs().max()) for node in world.nodes.values()) < 1e-2


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
    """Nobody steps, so mixing alone brings those that begin far apart together, and the newcomers are with them."""
    world = MemberWorld(8, IMPATIENT, iterations=80)
    for number, node in world.nodes.items():
        node.member.x.add_(10.0 * number)
    world.at(10.3, partial(world.kill, 2))
    world.at(14.7, partial(world.kill, 5))
    world.at(22.0, partial(world.forget, 2))
    world.at(22.0, partial(world.forget, 5))
    world.at(28.0, world.join)
    world.at(33.0, world.join)
    world.run()
    assert sorted(world.nodes) == [0, 1, 3, 4, 6, 7, 8, 9]
    for node in world.nodes.values():
        assert node.finished[-1][1] == 79
        assert max(node.waited_s) <= IMPATIENT.patience_s + 1.0
    spread = torch.stack([node.member.x for node in world.nodes.values()]).std(0).max()
    assert float(spread) < 1.0


class Pair:
    """Two members on one edge, and lines that lose nothing."""

    def __init__(self) -> None:
        layout = TileLayout([Parameter(name="x", shape=(8,))])
        self.ends = [Member(layout, PATIENT, torch.full((8,), float(number))) for number in (0, 1)]
        self.ends[1]._first.zero_()  # both began with zeros
        self._heard: dict[int, list[Message]] = {0: [], 1: []}

    def assign(self, to: int, topology: int, start: int, since: int | None) -> None:
        """Tell a member of a topology; since: in which the edge began; None: the topology is without it."""
        turns = {} if since is None else {1 - to: 0.5}
        self.ends[to].assign(Assignment(topology, start, to, (turns,), {} if since is None else {1 - to: since}))

    def iteration(self) -> None:
        for number, end in enumerate(self.ends):
            self._heard[1 - number] += [message for _, message in end.begin()]
            end.state()
            end.saved()
        for number, end in enumerate(self.ends):
            for message in self._heard[number]:
                assert end.received(1 - number, message) is None
            self._heard[number].clear()
        for number, end in enumerate(self.ends):
            mix = end.computed(0.0) or end.tick(PATIENT.patience_s)
            assert mix is not None, number
            end.mix(mix)
            assert not end.unreadable()
            end.acknowledged(1 - number, self.ends[1 - number].received_from(number))

    def mixes(self) -> bool:
        """Whether an iteration brings the two together."""
        self.ends[0].x.add_(1.0)
        self.iteration()
        return torch.equal(self.ends[0].x, self.ends[1].x)


def test_an_edge_that_ends_and_begins_anew_mixes_again() -> None:
    """It is in topologies 1 and 3, and not in 2; a node hears of 3 before 2 holds."""
    pair = Pair()
    for number in (0, 1):
        pair.assign(number, 1, 0, since=1)
    pair.iteration()
    pair.assign(0, 2, 2, since=None)
    pair.assign(0, 3, 4, since=3)  # member 1 hears of both later
    pair.iteration()
    pair.assign(1, 2, 2, since=None)
    pair.assign(1, 3, 4, since=3)
    before = [end.x.clone() for end in pair.ends]
    pair.iteration()
    pair.iteration()
    assert all(torch.equal(end.x, old) for end, old in zip(pair.ends, before, strict=True))
    assert pair.mixes()
    assert pair.ends[0].peers == (1,)


def test_messages_of_an_edge_that_never_begins_here_are_passed_over() -> None:
    """The edge ends and begins anew twice. One node hears of it all at once, so the edge between is the other end's."""
    pair = Pair()
    for number in (0, 1):
        pair.assign(number, 1, 0, since=1)
    pair.iteration()
    for topology, start, since in ((2, 1, None), (3, 2, 3), (4, 5, None), (5, 6, 5)):
        pair.assign(1, topology, start, since)
        if topology <= 3:
            pair.assign(0, topology, start, since)
    for _ in range(3):  # member 0 has the edge of topology 3
        pair.iteration()
    pair.assign(0, 4, 5, since=None)
    pair.assign(0, 5, 6, since=5)
    while pair.ends[1].iteration < 6:
        pair.iteration()
    assert pair.mixes()
    assert (pair.ends[0].peers, pair.ends[1].peers) == ((1,), (0,))


def test_a_peer_cannot_move_a_node_beyond_its_run_or_fill_its_memory() -> None:
    world = MemberWorld(2, IMPATIENT, iterations=20)
    world.run(0.15)
    (message,) = world.nodes[1].member.unacknowledged(0)
    member = world.nodes[0].member
    size = len(member.state().numbers)
    for number in range(1000):
        member.received(1, replace(message, sequence=message.sequence + 1 + number % 3, iteration=1 + number % 7))
    assert len(member.state().numbers) < size + 2000
    assert not member.unreadable()
    member.received(1, replace(message, iteration=10**12))
    assert "no turn" in member.unreadable()[1]
    assert member.peers == ()


def test_a_body_that_cannot_be_read_ends_the_edge_and_not_the_node() -> None:
    world = MemberWorld(3, IMPATIENT, topology="complete", iterations=20)
    world.run(0.15)
    member = world.nodes[0].member
    (good,) = world.nodes[1].member.unacknowledged(0)
    (bad,) = world.nodes[2].member.unacknowledged(0)
    assert member.received(1, good) is None
    assert member.received(2, replace(bad, body=b"junk")) is None
    mix = member.computed(0.0)
    assert mix is not None
    member.mix(mix)
    assert list(member.unreadable()) == [2]
    assert member.peers == (1,)
    assert [peer for peer, _ in member.begin()] == [1]


def test_a_newcomer_begins_with_the_parameters_of_its_first_peer() -> None:
    world = MemberWorld(4, PATIENT, iterations=20)
    for node in world.nodes.values():
        node.member.x.fill_(7.0)
    world.at(5.0, world.join)
    world.run()
    assert torch.allclose(world.nodes[4].member.x, torch.full_like(world.nodes[4].member.x, 7.0))
    assert world.nodes[4].finished[-1][1] == 19


def test_a_node_that_was_left_out_goes_on_where_its_peers_are() -> None:
    """It comes back with its disk 20 iterations later, and nobody waits for iterations that it has missed."""
    world = MemberWorld(4, replace(PATIENT, patience_s=5.0), topology="complete", step=drawn_step)
    away: list[SimulatedNode] = []

    def leave() -> None:
        world.kill(3)
        away.append(world.nodes.pop(3))
        world.rewire(world.furthest + 3)

    def come_back() -> None:
        world.nodes[3] = away[0]
        world.restart(3)
        world.rewire(world.furthest + 3, newcomers={3})

    world.at(4.5, leave)
    world.at(26.0, come_back)
    world.run()
    back = world.nodes[3]
    iterations = [iteration for _, iteration in back.finished]
    assert iterations[-1] == 39
    assert max(later - sooner for sooner, later in pairwise(iterations)) > 10  # it has passed what it missed
    ends = [node.finished[-1][0] for node in world.nodes.values()]
    assert max(ends) - min(ends) < 1.0
    waits = [wait for node in world.nodes.values() for wait in node.waited_s]
    assert sum(wait > 2.5 for wait in waits) <= 3  # each of the others for its death, and nobody for its return
    assert float((back.member.x - world.nodes[0].member.x).abs().max()) < 1.0


def test_a_message_keeps_all_its_fields_over_the_wire() -> None:
    world = MemberWorld(2, IMPATIENT)
    world.run(0.15)
    messages = [message for number in (0, 1) for message in world.nodes[number].member.unacknowledged(1 - number)]
    assert len(messages) == 2
    for message in messages:
        assert message_of(header_of(message), message.body) == message


def test_messages_that_come_out_of_order_after_the_last_iteration_are_all_mixed() -> None:
    node, peer = member(iterations=3), member(iterations=3)
    peer.x.fill_(1.0)
    node.assign(turns(FIRST, 0, 0, [1]))
    peer.assign(turns(FIRST, 0, 1, [0]))
    late = []
    for _ in range(3):
        late.append(begun(peer)[0])
        peer.received(0, begun(node)[1])
        mixed(peer)
        alone = node.computed(0.0) or node.tick(5.0)  # it does not wait for one that is absent
        assert alone is not None
        assert not alone.turns
    for place in (2, 1, 0):
        if (mix := node.received(1, late[place])) is not None:
            node.mix(mix)
    assert float(node.x[0] + peer.x[0]) == 1.0
