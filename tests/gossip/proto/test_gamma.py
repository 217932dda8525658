"""A codec that drops most of a difference needs a small γ. With 1, nodes diverge, and their mean looks well."""

from __future__ import annotations

import torch

from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.copies import Copies
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.topology import Layout, make_topology

LAYOUT = TileLayout([Parameter(name="m", shape=(64, 64))])
NODES, RATE, NOISE = 4, 0.1, 0.5


def test_with_whole_mixing_a_single_node_diverges_and_the_mean_does_not_show_it() -> None:
    earlier, later = losses("topk:64", 1.0, 50), losses("topk:64", 1.0, 100)
    assert later[0] > 20 * later[1]
    assert later[0] > 1.5 * earlier[0]  # and it goes on so
    slow = losses("topk:64", 0.1, 100)
    assert slow[0] < 6 * slow[1]
    assert abs(later[1] / slow[1] - 1) < 0.01


def test_a_codec_that_keeps_every_sign_needs_no_smaller_gamma() -> None:
    single, mean = losses("sign", 1.0, 100)
    assert single < 4 * mean


def losses(codec: str, gamma: float, iterations: int) -> tuple[float, float]:
    """Of a single node, the worst, and of the mean of all, after steps on ½‖x − target‖² with noisy gradients."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(LAYOUT.parameters, generator=generator)
    topology = make_topology("complete", Layout(NODES))
    start = torch.zeros(LAYOUT.parameters)
    x = [start.clone() for _ in range(NODES)]
    copies = [Copies(LAYOUT, gamma) for _ in range(NODES)]
    for node in range(NODES):
        for peer in topology.peers(node):
            copies[node].join(peer, start)
    for iteration in range(iterations):
        row = topology.at(iteration).rows
        sent = {
            (node, peer): copies[node].edges[peer].send((0, iteration), x[node], codec)
            for node in range(NODES)
            for peer in sorted(row[node])
        }
        for (node, peer), message in sent.items():
            copies[peer].edges[node].receive(message)
        for node in range(NODES):
            gradient = x[node] - target + NOISE * torch.randn(LAYOUT.parameters, generator=generator)
            turns = [Turn(0, iteration, peer) for peer in sorted(row[node])]
            copies[node].mix(x[node], turns, lambda turn, weights=row[node]: weights[turn.peer])  # type: ignore[misc]
            x[node] -= RATE * gradient
    mean = torch.stack(x).mean(0)
    return max(_loss(one, target) for one in x), _loss(mean, target)


def _loss(x: torch.Tensor, target: torch.Tensor) -> float:
    """Mean of ½(x − target)²; 0.5 in the beginning."""
    return float(((x - target).double() ** 2).mean()) / 2
