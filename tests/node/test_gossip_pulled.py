"""The parameters between two steps of `Gossip`, where gradients are computed."""

from __future__ import annotations

import torch

from thinwire_node.decentralized.compressed import CompressedCodec
from thinwire_node.decentralized.flat import FlatLayout
from thinwire_node.decentralized.pulled import Pulled

PEER = 3
NUMBERS = 5000


def rank(codec: str = "bf16") -> tuple[torch.Tensor, FlatLayout, CompressedCodec]:
    """A rank whose copy of its peer is 1 everywhere, and which itself is at 0."""
    parameter = torch.nn.Parameter(torch.zeros(NUMBERS))
    layout = FlatLayout([parameter])
    here, there = CompressedCodec(layout, codec), CompressedCodec(layout, codec)
    x = layout.empty()
    layout.values(x)[0].fill_(1.0)
    _, message = there.encode(0, x)
    here.decode(PEER, message)
    return parameter, layout, here


def test_parameters_are_pulled_and_are_back_before_a_step() -> None:
    """Half of the way to the peer is the mean of both."""
    parameter, layout, codec = rank()
    pulled = Pulled(layout, codec, 0.4)
    for _ in range(2):
        pulled.begin([])
        torch.testing.assert_close(parameter.data, torch.full((NUMBERS,), 0.2))
        assert pulled.own is not None
        pulled.end()
        assert torch.equal(parameter.data, torch.zeros(NUMBERS))
        assert pulled.own is None


def test_a_peer_that_is_left_out_pulls_nothing() -> None:
    parameter, layout, codec = rank()
    Pulled(layout, codec, 0.4).begin([PEER])
    assert torch.equal(parameter.data, torch.zeros(NUMBERS))


def test_without_a_pull_nothing_is_kept() -> None:
    parameter, layout, codec = rank()
    pulled = Pulled(layout, codec, 0.0)
    pulled.begin([])
    assert pulled.own is None
    assert torch.equal(parameter.data, torch.zeros(NUMBERS))
