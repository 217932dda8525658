"""Votes in a few levels: what a node takes out, what travels, and what is merged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import shapes_contract
from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import WholeSent, sent_from
from thinwire_proto.contract import Contract, DemoSpec
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.apply import decode_gradients
from thinwire_proto.exact.magnitudes import TABLE, UNIT
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout, layout_of
from thinwire_proto.exact.transform import forward
from thinwire_proto.exact.votes import WholeVotes
from thinwire_proto.wire.codec import contribution_bytes_max, decode_votes, encode_votes
from thinwire_proto.wire.packing import compress, pack_array, unpack_array

CPU = torch.device("cpu")
LAYOUT = TileLayout(shapes_contract().parameters)


def contract_of(levels: int = 2, **demo: object) -> Contract:
    return shapes_contract(rule={"kind": "merged_muon"}, demo={"vote_levels": levels} | demo)


def random_levels(levels: int, seed: int, absent: float = 0.2) -> WholeVotes:
    rng = np.random.default_rng(seed)
    values = rng.integers(-levels, levels + 1, LAYOUT.components).astype(np.int8)
    start = 0
    for tile in range(LAYOUT.tiles):
        size = LAYOUT.first_component(tile + 1) - start
        if rng.random() < absent:
            values[start : start + size] = 0
        start += size
    tiles = WholeVotes(values, np.zeros(0, np.uint8), levels).tiles(LAYOUT)
    return WholeVotes(values, rng.integers(80, 100, len(tiles)).astype(np.uint8), levels)


@given(st.integers(0, 2**31), st.sampled_from([1, 2, 3, 7, 127]), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=40, deadline=None)
def test_levels_round_trip(seed: int, levels: int, absent: float) -> None:
    votes = random_levels(levels, seed, absent)
    data = encode_votes(votes, LAYOUT)
    again = decode_votes(data, LAYOUT, MATRIX_COMPONENTS, "tile", whole=True, levels=levels)
    assert isinstance(again, WholeVotes)
    assert np.array_equal(again.signs, votes.signs)
    assert votes.codes is not None
    assert again.codes is not None
    assert np.array_equal(again.codes, votes.codes)
    assert len(data) <= contribution_bytes_max(LAYOUT, MATRIX_COMPONENTS, "tile", whole=True, levels=levels)


def test_malformed_levels_are_refused() -> None:
    fields = unpack_array(encode_votes(random_levels(2, 1), LAYOUT), "contribution", 2)

    def refuses(match: str, **changed: object) -> None:
        names = ("form", "count", "head", "body", "levels", "codes")
        data = pack_array([2, *(changed.get(name, field) for name, field in zip(names, fields, strict=True))])
        with pytest.raises(PayloadError, match=match):
            decode_votes(data, LAYOUT, MATRIX_COMPONENTS, "tile", whole=True, levels=2)

    digits = -(-fields[1] // 3)  # three digits of base 5 in a byte
    refuses("form 3; these have form 2", form=2)
    refuses("the payload announces", count=fields[1] - 1)
    refuses("levels", levels=compress(b"\0" * (digits - 1)))
    refuses("5 levels are below 125", levels=compress(b"\x7d" * digits))
    refuses("a tile is named and has no values", levels=compress(bytes([2 + 2 * 5 + 2 * 25]) * digits))
    refuses("codes of tiles", codes=compress(b"\x50"))


def test_what_is_taken_out_and_what_stays_are_all_there_was() -> None:
    """A level is `vote_step` deviations of the tile, rounded to a code; nothing beyond the last level goes."""
    contract = contract_of(vote_step=1.25)
    layout = layout_of(contract.parameters)
    momentum = Momentum(layout, contract.demo, CPU)
    before = torch.randn(layout.components, generator=torch.Generator().manual_seed(1)) * 1e-3
    before[5] = 1.0
    momentum.buffer.copy_(before)
    sent = momentum.extract(contract.demo.k)
    assert isinstance(sent, WholeSent)
    taken = torch.zeros_like(before)
    sent.add_to(taken, 1.0)
    assert torch.allclose(momentum.buffer + taken, before, atol=1e-7)
    assert sent.signs[5] == 2
    assert set(sent.signs.tolist()) == {-2, -1, 0, 1, 2}
    deviation = before[:MATRIX_COMPONENTS].square().mean().sqrt()
    assert sent.sizes[0] == pytest.approx(1.25 * float(deviation), rel=0.05)
    inside = (before[MATRIX_COMPONENTS : 2 * MATRIX_COMPONENTS] / sent.sizes[1]).abs() < 2.5
    rest = momentum.buffer[MATRIX_COMPONENTS : 2 * MATRIX_COMPONENTS][inside]
    assert rest.abs().max() <= sent.sizes[1] / 2 * 1.0001

    momentum.put_back(sent)
    assert torch.allclose(momentum.buffer, before, atol=1e-7)
    momentum.buffer.copy_(before)
    saved = {f"x.{name}": tensor for name, tensor in sent.tensors().items()}
    again = sent_from(saved, "x.", 0)
    found = torch.zeros_like(before)
    again.add_to(found, 1.0)
    assert torch.equal(found, taken)


def test_a_tile_that_is_too_small_for_any_code_is_not_sent() -> None:
    contract = contract_of()
    layout = layout_of(contract.parameters)
    momentum = Momentum(layout, contract.demo, CPU)
    momentum.buffer[:MATRIX_COMPONENTS] = 1e-12
    momentum.buffer[MATRIX_COMPONENTS : 2 * MATRIX_COMPONENTS] = torch.randn(MATRIX_COMPONENTS)
    votes = momentum.extract(contract.demo.k).votes()
    assert votes.tiles(layout).tolist() == [1]
    assert votes.codes is not None
    assert len(votes.codes) == 1
    assert (momentum.buffer[:MATRIX_COMPONENTS] == 1e-12).all()


def test_an_update_is_the_mean_of_what_nodes_sent() -> None:
    """Weighted; each tile by the median of its sizes; in 127 levels, which leave an error of half of one."""
    contract = contract_of(update_levels=127)
    merger, total, weights = merger_of(contract, LAYOUT, 0), np.zeros(LAYOUT.components), (5, 1, 2)
    for seed, weight in enumerate(weights):
        votes = random_levels(2, seed, absent=0.0)
        votes = WholeVotes(votes.signs, np.full(LAYOUT.tiles, 120, np.uint8), 2)
        merger.add(votes, weight)
        total += weight * votes.signs
    found = decode_gradients(merger.merged(), LAYOUT, contract.demo, step=0, device=CPU)
    expected = torch.from_numpy(total / sum(weights) * TABLE[120] * UNIT).float()
    tiles = torch.zeros(LAYOUT.components)
    for tensor in LAYOUT.tensors:
        LAYOUT.add_into(tiles, tensor, found[tensor.name])
    matrices, count = forward(LAYOUT.matrices(tiles)), LAYOUT.matrix_tiles
    whole = [tile for tile in range(count) if LAYOUT.tensors[0].tiles > tile]  # without padding, all is there
    error = (matrices[whole] - LAYOUT.matrices(expected)[whole]).abs().max()
    assert error < 0.02 * expected.abs().max()


def test_weights_end_before_a_sum_overflows() -> None:
    contract = contract_of(levels=3)
    merger = merger_of(contract, LAYOUT, 0)
    votes = WholeVotes(np.full(LAYOUT.components, 3, np.int8), np.full(LAYOUT.tiles, 90, np.uint8), 3)
    merger.add(votes, 10_922)
    with pytest.raises(ValueError, match="at most 10922"):
        merger.add(votes, 1)


def test_the_step_of_levels_can_be_amended() -> None:
    contract = contract_of()
    momentum = Momentum(LAYOUT, contract.demo, CPU)
    momentum.amend(DemoSpec.model_validate(contract.demo.model_dump() | {"vote_step": 3.0}))
    momentum.buffer.normal_(generator=torch.Generator().manual_seed(1))
    sent = momentum.extract(contract.demo.k)
    assert isinstance(sent, WholeSent)
    assert sent.sizes[0] == pytest.approx(3.0, rel=0.1)
