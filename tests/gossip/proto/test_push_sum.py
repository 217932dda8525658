"""Push-sum over one-way links: no mass is lost whatever is lost on the way, and all come to one mean."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest
import torch

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import LocalError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import Codec, make_codec
from thinwire_proto.gossip.push_sum import MASS_MAX, WEIGHT_MAX, WEIGHT_ONE, Incoming, Outgoing, Push, PushSumNode
from thinwire_proto.gossip.topology import Layout, make_topology

LAYOUT = TileLayout([Parameter(name="v", shape=(30,))])


def start(node: int) -> torch.Tensor:
    return torch.randn(30, generator=torch.Generator().manual_seed(node))


class OneWayWorld:
    """Nodes on the directed exponential graph. A message that is late comes with the next one that is not."""

    def __init__(self, nodes: int, codec: Codec, seed: int) -> None:
        self.nodes = [PushSumNode(start(node)) for node in range(nodes)]
        self.topology = make_topology("directed-exponential", Layout(nodes))
        self._codec, self._rng = codec, Random(seed)
        self._out: dict[tuple[int, int], Outgoing] = {}
        self._in: dict[tuple[int, int], Incoming] = {}
        self._waiting: dict[tuple[int, int], list[Push]] = {}

    def iterate(self, number: int, late: float) -> None:
        mixing = self.topology.at(number)
        for name, node in enumerate(self.nodes):
            arcs = [(name, target) for target in mixing.targets(name)]
            for arc in arcs:
                self._out.setdefault(arc, Outgoing(30))
                self._in.setdefault(arc, Incoming())
            node.share([self._out[arc] for arc in arcs])
            for arc in arcs:
                self._waiting.setdefault(arc, []).append(self._out[arc].push(self._codec))
        for arc, pushes in self._waiting.items():
            if self._rng.random() >= late:
                for push in pushes:
                    self._in[arc].receive(push, self._codec, self.nodes[arc[1]])
                pushes.clear()

    def under_way(self) -> torch.Tensor:
        """Mass that no node has: given away and not received, or not public yet."""
        total = torch.zeros(30, dtype=torch.int64)
        for arc, outgoing in self._out.items():
            total += outgoing.rest
            if self._waiting[arc]:
                twin = deepcopy(self._in[arc])
                reader = PushSumNode(torch.zeros(30))
                for push in self._waiting[arc]:
                    twin.receive(push, self._codec, reader)
                total += reader.mass
        return total


@pytest.mark.parametrize("codec", ["dense", "bf16", "int8"])
@pytest.mark.parametrize("late", [0.0, 0.2])
@pytest.mark.parametrize("nodes", [2, 5])
def test_all_come_to_one_mean_and_no_mass_is_lost(codec: str, late: float, nodes: int) -> None:
    world = OneWayWorld(nodes, make_codec(codec, LAYOUT), seed=nodes)
    mass = sum(node.mass for node in world.nodes)
    mean = torch.stack([start(node).double() for node in range(nodes)]).mean(0)
    for number in range(200):
        world.iterate(number, late)
        assert torch.equal(sum(node.mass for node in world.nodes) + world.under_way(), mass)  # type: ignore[arg-type]
    for number in range(200, 300):
        world.iterate(number, 0.0)
    assert sum(node.weight for node in world.nodes) <= nodes * WEIGHT_ONE
    for node in world.nodes:
        torch.testing.assert_close(node.x.double(), mean, rtol=0, atol=1e-4)


def test_a_step_moves_x_by_as_much() -> None:
    node, arc = PushSumNode(start(1)), Outgoing(30)
    node.share([arc])
    before = node.x
    node.step(torch.full((30,), 0.25))
    torch.testing.assert_close(node.x, before - 0.25, rtol=0, atol=1e-6)


def test_what_no_source_sends_is_refused() -> None:
    codec, node, incoming, outgoing = make_codec("dense", LAYOUT), PushSumNode(start(1)), Incoming(), Outgoing(30)
    PushSumNode(start(2)).share([outgoing])
    push = outgoing.push(codec)
    before = node.mass.clone()
    for bad in (Push(0, 0, push.body), Push(2, 0, push.body), Push(1, -1, push.body)):
        with pytest.raises(PayloadError):
            incoming.receive(bad, codec, node)
    assert torch.equal(node.mass, before)
    incoming.receive(push, codec, node)
    with pytest.raises(PayloadError, match="message 1 of an arc came after message 1"):
        incoming.receive(push, codec, node)
    incoming.receive(outgoing.push(codec), codec, node)
    with pytest.raises(PayloadError, match="smaller"):
        incoming.receive(Push(3, 0, push.body), codec, node)


@pytest.mark.parametrize("weight", [WEIGHT_MAX, 65 * WEIGHT_MAX, 1 << 400])
def test_a_weight_that_no_node_can_have_is_refused(weight: int) -> None:
    codec, node, outgoing = make_codec("dense", LAYOUT), PushSumNode(start(1)), Outgoing(30)
    push = outgoing.push(codec)
    mass = node.mass.clone()
    with pytest.raises(PayloadError, match="weight"):
        Incoming().receive(replace(push, weight=weight), codec, node)
    assert node.weight == WEIGHT_ONE
    assert torch.equal(node.mass, mass)


def test_a_share_that_no_node_can_give_is_refused() -> None:
    """Each message may add to the growth of the last one, so three could pass the bound that one does not."""
    codec, node, incoming = make_codec("dense", LAYOUT), PushSumNode(start(1)), Incoming()
    body = codec.encode(torch.full((30,), MASS_MAX))
    for number in (1, 2):
        incoming.receive(Push(number, 0, body), codec, node)
    with pytest.raises(PayloadError, match="its share is beyond"):
        incoming.receive(Push(3, 0, body), codec, node)


def test_a_node_that_diverges_says_so() -> None:
    with pytest.raises(LocalError, match="push-sum"):
        PushSumNode(torch.full((30,), float("nan")))
    with pytest.raises(LocalError, match="diverged"):
        PushSumNode(torch.full((30,), 1.5e7)).step(torch.full((30,), -1.5e7))
