"""A node that sends all components: the same votes and the same momentum as from a list, in less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.looking_ahead import looked_ahead
from support.small import SHAPES, shapes_contract
from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent, WholeSent
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import WholeVotes

LAYOUT = TileLayout(shapes_contract().parameters)
RATE = 0.1


def momentum_of(levels: int, **fields: object) -> Momentum:
    demo = {"k": MATRIX_COMPONENTS, "magnitude": "tile", "precondition": "none"} | fields
    return Momentum(LAYOUT, DemoSpec.model_validate(demo | {"update_levels": levels}), "cpu")


def gradients_of(seed: int) -> dict[str, Tensor]:
    """The second tensor has no gradient, so its tiles are 0."""
    generator = torch.Generator().manual_seed(seed)
    found = {f"t{number}": torch.randn(shape, generator=generator) for number, shape in enumerate(SHAPES)}
    return found | {"t1": torch.zeros(SHAPES[1])}


def test_whole_tiles_are_what_a_list_of_all_components_is() -> None:
    whole, listed = (momentum_of(levels) for levels in (3, 0))
    for step in range(3):
        one, other = (
            momentum.accumulate_and_extract(gradients_of(step), RATE, 2, MATRIX_COMPONENTS)
            for momentum in (whole, listed)
        )
        assert isinstance(one, WholeSent)
        assert not isinstance(other, WholeSent)
        assert len(one) == len(other) < LAYOUT.components
        assert torch.equal(one.components, other.components)
        assert torch.equal(one.values > 0, other.values > 0)
        assert (one.values / other.values - 1).abs().max() < 0.1  # a mean at an edge may have the next code
        assert torch.allclose(whole.buffer, listed.buffer, atol=0.1 * one.values.abs().max().item())
        votes = one.votes()
        assert isinstance(votes, WholeVotes)
        assert votes.codes is not None
        assert len(votes.codes) == len(votes.tiles(LAYOUT)) < LAYOUT.tiles


def test_nothing_is_lost_whether_it_is_sent_or_put_back() -> None:
    momentum = momentum_of(3, beta=0.9)
    momentum.accumulate(gradients_of(1), RATE)
    before = momentum.buffer.clone()
    sent = momentum.extract(MATRIX_COMPONENTS)
    flat = torch.zeros(LAYOUT.components)
    flat[sent.components] = sent.values
    assert torch.allclose(before, momentum.buffer + flat, atol=1e-6)
    after = momentum.buffer.clone()
    momentum.put_back(sent)
    assert torch.allclose(momentum.buffer, before, atol=1e-6)
    momentum.buffer.copy_(after)
    momentum.accumulate({name: torch.zeros_like(g) for name, g in gradients_of(1).items()}, RATE)
    left = momentum.buffer.clone()
    momentum.put_back(sent)  # one extraction later it has decayed once
    assert torch.allclose(momentum.buffer, left + 0.9 * flat, atol=1e-6)


def test_a_node_looks_ahead_as_from_a_list() -> None:
    momentum = momentum_of(3)
    momentum.accumulate(gradients_of(1), RATE)
    sent = momentum.extract(MATRIX_COMPONENTS)
    listed = Sent(sent.components, sent.values, sent.extraction)
    assert torch.equal(looked_ahead(momentum, sent, LAYOUT), looked_ahead(momentum, listed, LAYOUT))


def test_components_of_zero_count_as_plus_in_a_tile_with_votes() -> None:
    momentum = momentum_of(3)
    momentum.buffer[:4] = torch.tensor([1.0, -1.0, 0.0, -0.0])
    sent = momentum.extract(MATRIX_COMPONENTS)
    assert len(sent) == MATRIX_COMPONENTS
    assert (sent.values[:4] > 0).tolist() == [True, False, True, True]
    size = sent.values[0].item()
    assert size == pytest.approx(2 / MATRIX_COMPONENTS, rel=0.05)  # the mean magnitude of the tile
    assert momentum.buffer[2].item() == pytest.approx(-size)  # what was sent too much is taken back later
