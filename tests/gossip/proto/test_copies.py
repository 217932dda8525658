"""Copies of both ends are equal to the bit, whatever the line does; each message counts once; the mean stays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from bench.speed.timing import threads
from thinwire_proto.contract import Parameter
from thinwire_proto.errors import ConfigError, LocalError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.copies import Copies
from thinwire_proto.gossip.edge import Edge
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.message import FINGERPRINT_PARTS, SNAPSHOT
from thinwire_proto.gossip.receiver import HELD_MAX, RECENT_ITERATIONS
from thinwire_proto.gossip.sender import UNACKNOWLEDGED_MAX
from thinwire_proto.gossip.topology import Layout, make_topology, topology_names

UNDIRECTED = topology_names(directed=False)
CPU = torch.device("cpu")
LAYOUT = TileLayout([Parameter(name="m", shape=(3, 5)), Parameter(name="v", shape=(4,))])
ITERATIONS_TO_ONE_MEAN = 250


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So little work only waits for a second thread."""
    with threads(1):
        yield


def parameters(seed: int) -> torch.Tensor:
    return 0.1 * torch.randn(LAYOUT.parameters, generator=torch.Generator().manual_seed(seed))


def edges() -> tuple[Edge, Edge]:
    start = parameters(0)
    return Edge(LAYOUT, start, CPU), Edge(LAYOUT, start, CPU)


CODECS = {"dense": 1.0, "bf16": 1.0, "int8": 1.0, "sign": 0.5}
"""Each with a γ at which it converges."""


@pytest.mark.parametrize(
    ("name", "codec"),
    [(name, "sign") for name in UNDIRECTED] + [("one-peer-exponential", codec) for codec in CODECS if codec != "sign"],
)
def test_error_feedback_brings_all_nodes_to_one_mean(name: str, codec: str) -> None:
    """Without steps, whatever a codec drops is sent in the end."""
    nodes = range(4)
    topology = make_topology(name, Layout(len(nodes)))
    x, copies = [parameters(node) for node in nodes], [Copies(LAYOUT, CODECS[codec]) for _ in nodes]
    for one, other in itertools.permutations(nodes, 2):
        copies[one].join(other, parameters(0))

    def weight(node: int, turn: Turn) -> float:
        return topology.at(turn.iteration).rows[node][turn.peer]

    before = np.mean([begun.double().numpy() for begun in x], axis=0)
    for iteration in range(ITERATIONS_TO_ONE_MEAN):
        mixing = topology.at(iteration)
        sent = {
            (node, peer): copies[node].edges[peer].send((0, iteration), x[node], codec)
            for node in nodes
            for peer in mixing.targets(node)
        }
        for (node, peer), message in sent.items():
            copies[peer].edges[node].receive(message)
            copies[node].edges[peer].acknowledge(message.sequence)
        for node in nodes:
            turns = [Turn(0, iteration, peer) for peer in mixing.targets(node)]
            copies[node].mix(x[node], turns, partial(weight, node))
    for found in x:
        np.testing.assert_allclose(found.numpy(), before, rtol=0, atol=2e-3)
    after = np.mean([found.double().numpy() for found in x], axis=0)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-7)


def test_a_message_counts_once_and_waits_for_those_before_it() -> None:
    one, other = edges()
    messages = [one.send((0, number), parameters(number + 1), "sign") for number in range(4)]
    assert other.receive(messages[2]) == []
    assert other.receive(messages[1]) == []
    assert other.receive(messages[2]) == []
    assert other.receive(messages[0]) == messages[:3]
    assert other.receive(messages[1]) == []
    assert other.receive(messages[3]) == messages[3:4]
    other.send((0, 4), parameters(9), "sign")  # past all of them
    assert torch.equal(other.theirs.flat, one.own.flat)


def test_both_ends_mix_the_same_copies_however_late_a_message_is() -> None:
    one, other = edges()
    ours = [one.send((0, number), parameters(number + 1), "int8") for number in range(3)]
    theirs = [other.send((0, number), parameters(number + 5), "sign") for number in range(3)]
    assert [other.receive(message) for message in ours] == [[message] for message in ours]
    there = [other.difference((0, number)) for number in range(3)]
    here = []
    for number, message in enumerate(theirs):
        one.receive(message)
        here.append(one.difference((0, number)))
    for found, opposite in zip(here, there, strict=True):
        assert found is not None
        assert opposite is not None
        assert torch.equal(found, -opposite)
    assert not torch.equal(here[0], here[1])  # type: ignore[arg-type]


def test_a_turn_that_the_peer_passed_over_is_void() -> None:
    one, other = edges()
    for iteration in (0, 1):
        one.send((0, iteration), parameters(iteration + 1), "sign")
    (arrived,) = one.receive(other.send((0, 1), parameters(7), "sign"))
    assert arrived.when == (0, 1)
    with pytest.raises(LocalError, match="not ready"):
        one.difference((0, 0))
    assert one.difference((0, 1)) is not None


def test_void_turns_are_forgotten_once_the_peer_has_their_messages() -> None:
    one, other = edges()
    for iteration in range(0, 100, 2):
        message = one.send((0, iteration), parameters(iteration), "sign")
        other.receive(message)
        skip = other.skip((0, iteration + 1))  # it has passed this turn, and confirms the message
        one.receive(skip)
        other.acknowledge(skip.sequence)
    assert not one._void


def test_an_unconfirmed_edge_stops_sending() -> None:
    one, _ = edges()
    for iteration in range(UNACKNOWLEDGED_MAX):
        one.send((0, iteration), parameters(1), "sign")
    assert not one.may_send_for((1, 0))
    with pytest.raises(LocalError, match="messages wait"):
        one.send((1, 0), parameters(1), "sign")
    assert len(one.unacknowledged()) == UNACKNOWLEDGED_MAX
    one.acknowledge(UNACKNOWLEDGED_MAX - 1)
    assert [message.sequence for message in one.unacknowledged()] == [UNACKNOWLEDGED_MAX]


def test_a_copy_that_differs_is_found_and_replaced() -> None:
    """A flipped bit of memory: no turn is mixed with it until a snapshot has come."""
    one, other = edges()
    other.theirs.flat[3] += 1e-3
    mixed: list[bool] = []
    for iteration in range(FINGERPRINT_PARTS + 6):
        message = one.send((0, iteration), parameters(iteration), "int8")
        answer = other.send((0, iteration), parameters(iteration + 50), "int8")
        other.receive(message)
        one.receive(answer)
        mixed.append(other.difference((0, iteration)) is not None)
        one.difference((0, iteration))
    assert other.differences_found
    assert False in mixed
    assert mixed[-3:] == [True] * 3
    assert torch.equal(one.own.flat, other.theirs.flat)


def test_ends_with_nothing_in_common_begin_with_snapshots() -> None:
    one, other = (Edge(LAYOUT, None, CPU) for _ in range(2))
    message = one.send((0, 0), parameters(1), "sign")
    assert message.codec == SNAPSHOT
    other.send((0, 0), parameters(2), "sign")
    other.receive(message)
    assert other.difference((0, 0)) is not None
    assert torch.equal(other.theirs.flat, parameters(1))
    sent = [one.send((0, iteration), parameters(3), "sign").codec for iteration in range(1, 4)]
    assert sent == [SNAPSHOT, "sign", "sign"]


def test_each_end_sends_two_snapshots_even_if_both_begin_at_once() -> None:
    ends = [Edge(LAYOUT, None, CPU) for _ in range(2)]
    sent = []
    for iteration in range(4):
        messages = [end.send((0, iteration), parameters(iteration), "sign") for end in ends]
        for end, message in zip(ends, reversed(messages), strict=True):
            end.receive(message)
            assert end.difference((0, iteration)) is not None
        sent.append([message.codec for message in messages])
    assert sent == [[SNAPSHOT, SNAPSHOT]] * 2 + [["sign", "sign"]] * 2


def test_what_no_peer_can_have_sent_is_refused_and_changes_nothing() -> None:
    one, other = edges()
    message = one.send((0, 0), parameters(1), "sign")
    for bad, words in (
        (replace(message, sequence=0), "came after message 0"),
        (replace(message, sequence=UNACKNOWLEDGED_MAX + 1), "came after message 0"),
        (replace(message, acknowledged=1), "were sent"),
        (replace(message, acknowledged=-1), "were sent"),
    ):
        with pytest.raises(PayloadError, match=words):
            other.receive(bad)
    other.send((0, 0), parameters(2), "sign")
    before = other.theirs.flat.clone()
    other.receive(replace(message, codec="none"))
    with pytest.raises(PayloadError, match="no 'none'"):
        other.difference((0, 0))
    assert torch.equal(other.theirs.flat, before)
    _, third = edges()
    third.receive(message)
    with pytest.raises(PayloadError, match="came after that"):
        third.receive(replace(message, sequence=2))


def test_a_bad_body_of_a_passed_turn_is_refused_when_sending_and_changes_nothing() -> None:
    one, other = edges()
    other.receive(replace(one.send((0, 0), parameters(1), "sign"), body=b"\x01 no body"))
    before = other.own.flat.clone()
    for _ in range(2):
        with pytest.raises(PayloadError, match="bytes"):
            other.send((0, 1), parameters(2), "sign")
    assert other.own.sequence == 0
    assert torch.equal(other.own.flat, before)
    assert not other.unacknowledged()


def test_messages_that_wait_are_bounded_whatever_their_order() -> None:
    """First those that come in order, then the end of the window backwards: one more would release all of them."""
    one, other = edges()
    message = one.send((0, 0), parameters(1), "sign")
    numbers = [*range(1, 10), *range(25, 10, -1)]
    assert len(numbers) == HELD_MAX
    for number in numbers:
        other.receive(replace(message, sequence=number, iteration=number))
    with pytest.raises(PayloadError, match=f"{HELD_MAX} messages of an edge wait"):
        other.receive(replace(message, sequence=10, iteration=10))


def test_mixing_moves_both_ends_by_opposite_amounts() -> None:
    x = [parameters(1), parameters(2)]
    copies = [Copies(LAYOUT, 0.5), Copies(LAYOUT, 0.5)]
    for one, other in ((0, 1), (1, 0)):
        copies[one].join(other, torch.zeros(LAYOUT.parameters))
    messages = [copies[one].edges[1 - one].send((0, 0), x[one], "dense") for one in (0, 1)]
    for one in (0, 1):
        copies[one].edges[1 - one].receive(messages[1 - one])
    expected = [x[one] + 0.5 * 0.5 * (x[1 - one] - x[one]) for one in (0, 1)]
    for one in (0, 1):
        assert copies[one].mix(x[one], [Turn(0, 0, 1 - one)], lambda turn: 0.5) == 1
    for found, wanted in zip(x, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_gradient_is_pulled_towards_the_mean_of_what_is_known_of_the_peers() -> None:
    """Peer 3 has not sent its snapshot yet, and peer 4 was not heard of for long."""
    x, known = parameters(1), {peer: parameters(peer) for peer in (2, 4, 5)}
    copies, out = Copies(LAYOUT), torch.empty(LAYOUT.parameters)
    for peer in (5, 4, 3, 2):  # the order does not matter
        copies.join(peer, None if peer == 3 else torch.zeros(LAYOUT.parameters))
    for peer, theirs in known.items():
        there = Edge(LAYOUT, torch.zeros(LAYOUT.parameters), CPU)
        when = (0, 0 if peer == 4 else 20)
        copies.edges[peer].send(when, x, "dense")
        copies.edges[peer].receive(there.send(when, theirs, "dense"))
        copies.edges[peer].difference(when)
    copies.pull(x, 0.4, RECENT_ITERATIONS + 1, out)
    torch.testing.assert_close(out, x + 0.4 * ((x + known[2] + known[5]) / 3 - x))
    copies.pull(x, 0.4, RECENT_ITERATIONS, out)
    torch.testing.assert_close(out, x + 0.4 * ((x + known[2] + known[4] + known[5]) / 4 - x))
    copies.pull(x, 0.4, 10 * RECENT_ITERATIONS, out)
    assert torch.equal(out, x)


@pytest.mark.parametrize("gamma", [0.0, -0.1, 1.01, float("nan")])
def test_gamma_is_a_fraction(gamma: float) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        Copies(LAYOUT, gamma)


STEP = 0.003
WIDE = TileLayout([Parameter(name="m", shape=(64, 64))])


class Apart:
    """Two nodes whose steps are much larger for some parameters than for most, as those of rarely used embeddings are.
    Each mixes with the other by one bit."""

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(0)
        scale = torch.exp(2 * self._normal())
        self._scale = STEP * scale / scale.square().mean().sqrt()
        self.x = [torch.zeros(WIDE.parameters) for _ in range(2)]
        self.edges = [Edge(WIDE, self.x[0], CPU) for _ in range(2)]
        self.iteration = 0

    def steps(self, iterations: int, *, mixing: bool = True) -> float:
        """The distance of each from their mean afterwards, in steps."""
        for _ in range(iterations):
            self.iteration += 1
            for x in self.x:
                x.add_(self._scale * self._normal())
            if mixing:
                self._mix()
        return float((self.x[0] - self.x[1]).square().mean().sqrt()) / 2 / STEP

    def _mix(self) -> None:
        when = (0, self.iteration)
        one, other = (edge.send(when, x, "sign") for edge, x in zip(self.edges, self.x, strict=True))
        for edge, message in zip(self.edges, (other, one), strict=True):
            edge.receive(message)
        for edge, x in zip(self.edges, self.x, strict=True):
            difference = edge.difference(when)
            assert difference is not None
            x.add_(difference.mul_(0.5))
            edge.acknowledge(edge.own.sequence)

    def _normal(self) -> torch.Tensor:
        return torch.randn(WIDE.parameters, generator=self._random)


@pytest.mark.parametrize("edge_is_new", [False, True])
def test_nodes_that_were_apart_come_together_again_by_one_bit(edge_is_new: bool) -> None:
    """In the first turn of a new edge, each takes half of a distance that no signs can carry, so a snapshot follows."""
    pair = Apart()
    before = pair.steps(400)
    assert pair.steps(80, mixing=False) > 0.5 * before
    if edge_is_new:
        pair.edges = [Edge(WIDE, None, CPU) for _ in range(2)]
    assert max(pair.steps(10) for _ in range(100)) < 2.5 * before
