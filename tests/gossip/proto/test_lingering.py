"""What is open when an edge ends is mixed by both ends or by none, so the mean stays."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support.member_world import MemberWorld
from thinwire_proto.contract import Parameter
from thinwire_proto.contract.exchanges.gossip import LINGERING_MAX
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.message import SKIP, Message
from thinwire_proto.gossip.peer import LINGER_ITERATIONS, Peer

SETTINGS = MemberSettings("dense", 1.0, 0, 5.0)
FIRST, SECOND = 1, 2


class TornPair:
    """Two members in iteration 1, after a turn of which the second has no message yet, and which the first has mixed.
    kept: that message."""

    def __init__(self) -> None:
        layout = TileLayout([Parameter(name="x", shape=(8,))])
        self.ends = [Member(layout, SETTINGS, torch.zeros(8)) for _ in range(2)]
        for number, end in enumerate(self.ends):
            end.x.add_(1.0 + number)
            end.assign(Assignment(FIRST, 0, number, ({1 - number: 0.5},), {1 - number: FIRST}))
        ((_, self.kept),) = self.ends[0].begin()
        ((_, message),) = self.ends[1].begin()
        self.ends[0].received(1, message)
        for end in self.ends:
            self.save(end)
        mixes = [end.computed(0.0) or end.tick(5.0) for end in self.ends]
        for end, mix in zip(self.ends, mixes, strict=True):
            assert mix is not None
            end.mix(mix)
        assert self.sum_of() != 3.0  # one end alone has mixed

    def save(self, end: Member) -> None:
        end.state()
        end.saved()

    def sum_of(self) -> float:
        return float(self.ends[0].x[0] + self.ends[1].x[0])

    def end_the_edge(self) -> list[list[tuple[int, Message]]]:
        """Tell both of a topology without the edge, and begin an iteration of it."""
        for number, end in enumerate(self.ends):
            end.assign(Assignment(SECOND, 1, number, ({},), {}))
        return [self.begin(end) for end in self.ends]

    def begin(self, end: Member) -> list[tuple[int, Message]]:
        sent = end.begin()
        self.save(end)
        return sent

    def step(self, end: Member) -> None:
        mix = end.computed(10.0)
        assert mix is not None, "nobody waits for a peer whose edge has ended"
        end.mix(mix)


def test_a_message_that_comes_after_the_edge_has_ended_is_mixed() -> None:
    pair = TornPair()
    pair.end_the_edge()
    one, other = pair.ends
    assert other.peers == (0,)  # it lingers
    pair.step(other)
    other.received(0, pair.kept)
    pair.begin(other)
    pair.step(other)
    assert pair.sum_of() == 3.0
    other.acknowledged(0, one.received_from(1))
    pair.begin(other)
    assert not other.peers  # nothing is open any more


def test_the_end_is_told_so_that_nothing_lingers_where_nothing_comes() -> None:
    pair = TornPair()
    sent = pair.end_the_edge()
    ((_, message),) = sent[0]
    assert (message.codec, message.body) == (SKIP, b"")
    other = pair.ends[1]
    other.received(0, pair.kept)
    other.received(0, message)
    pair.step(other)
    pair.begin(other)
    assert not other.peers
    assert pair.sum_of() == 3.0


def test_the_message_of_a_mixed_turn_is_kept_until_the_peer_has_it() -> None:
    pair = TornPair()
    ((_, message),) = pair.end_the_edge()[1]
    one, other = pair.ends
    one.received(1, message)  # the other sends no more, and may still wait for the message that this one has sent
    pair.step(one)
    pair.begin(one)
    for again in one.unacknowledged(1):
        other.received(0, again)
    pair.step(other)
    assert pair.sum_of() == 3.0


def test_an_edge_whose_peer_never_answers_is_given_up() -> None:
    pair = TornPair()
    pair.end_the_edge()
    other = pair.ends[1]
    for _ in range(LINGER_ITERATIONS):
        assert other.peers == (0,)
        pair.step(other)
        pair.begin(other)
    assert not other.peers


def test_a_member_that_is_restored_lingers_as_long() -> None:
    pair = TornPair()
    pair.end_the_edge()
    other = pair.ends[1]
    layout = TileLayout([Parameter(name="x", shape=(8,))])
    twin = Member.restore(layout, SETTINGS, other.state())
    assert twin.peers == (0,)
    twin.received(0, pair.kept)
    for _ in range(2):
        mix = twin.computed(0.0)
        assert mix is not None
        twin.mix(mix)
        twin.begin()
    assert float(pair.ends[0].x[0] + twin.x[0]) == 3.0


def test_a_member_that_is_restored_after_the_last_iteration_mixes_all_that_comes() -> None:
    """Two peers are late; the node has finished without them, and was killed then."""
    layout = TileLayout([Parameter(name="x", shape=(8,))])
    last = replace(SETTINGS, iterations=1)
    members = [Member(layout, last, torch.zeros(8)) for _ in range(3)]
    turns: list[dict[int, float]] = [{1: 0.25, 2: 0.25}, {0: 0.25}, {0: 0.25}]
    sent = []
    for number, member in enumerate(members):
        member.x.add_(number)
        member.assign(Assignment(FIRST, 0, number, (turns[number],), dict.fromkeys(turns[number], FIRST)))
        sent.append(member.begin())
    first = members[0]
    assert first.computed(0.0) is None
    mix = first.tick(5.0)
    assert mix is not None
    first.mix(mix)
    restored = Member.restore(layout, last, first.state())
    for peer in (1, 2):
        ((_, message),) = sent[peer]
        late = restored.received(peer, message)
        assert late is not None, peer
        restored.mix(late)
    assert float(restored.x[0]) == 0.25 * 1 + 0.25 * 2


def test_at_most_so_many_edges_linger() -> None:
    peers = [Peer(number) for number in range(LINGERING_MAX + 2)]
    for peer in peers:
        peer.lingers(peer.number, peers)
    stay = [peer.number for peer in peers if peer.lingers(10, peers)]
    assert stay == [2, 3, 4, 5]  # the newest


def mean_of(world: MemberWorld) -> Tensor:
    return torch.stack([node.member.x for node in world.nodes.values()]).double().mean(0)


@pytest.mark.parametrize("slack", [0, 1, 2, 4])
@pytest.mark.parametrize("topology", ["one-peer-exponential", "alternating-exponential-ring"])
def test_the_mean_stays_while_nodes_pause_for_longer_than_the_patience(topology: str, slack: int) -> None:
    """Some pause near the end, so that the last messages come after others have finished."""
    rng = random.Random(slack)
    pauses = {(rng.randrange(8), rng.randrange(5, 40)): rng.choice([8.0, 15.0, 25.0, 40.0]) for _ in range(6)}
    world = MemberWorld(
        8,
        MemberSettings("sign", 1.0, slack, 5.0),
        topology=topology,
        compute_s=lambda node, iteration: pauses.get((node, iteration), 0.6 + 0.1 * node),
    )
    for number, node in world.nodes.items():
        node.member.x.add_(number)
    before = mean_of(world)
    world.run()
    assert float((mean_of(world) - before).abs().max()) < 1e-6 * float(before.abs().max())
    assert any(node.missing for node in world.nodes.values())
