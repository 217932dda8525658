"""Updates in a few levels: each component is rounded once, by the coordinator, and takes no more bits than it says."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from support.small import random_replica, random_sized_votes, shapes_contract
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.magnitudes import gain
from thinwire_proto.exact.mix64 import mix64
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.transform import inverse
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, Merged, Votes
from thinwire_proto.wire.codec import decode_update, encode_update, update_bytes_max
from thinwire_proto.wire.packing import compress, pack_array, unpack_array

LAYOUT = TileLayout(shapes_contract().parameters)
RATE = 2.0**-9
LEVELS = (1, 2, 3, 5, 7, 8, 127)
Weighed = list[tuple[Votes, int]]


def contract_of(levels: int) -> Contract:
    return shapes_contract(demo={"magnitude": "tile", "update_levels": levels})


def merged_by(contract: Contract, contributions: Weighed) -> Merged | Levels:
    merger = merger_of(contract, LAYOUT, 0)
    for votes, weight in contributions:
        merger.add(votes, weight)
    return merger.merged()


def in_levels(levels: int, contributions: Weighed) -> Levels:
    merged = merged_by(contract_of(levels), contributions)
    assert isinstance(merged, Levels)
    return merged


@given(
    st.sampled_from(LEVELS),
    st.integers(1, 4096),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_an_update_in_levels_round_trips(levels: int, k: int, weights: list[int], seed: int) -> None:
    merged = in_levels(levels, [(random_sized_votes(LAYOUT, k, seed + n), w) for n, w in enumerate(weights)])
    data = encode_update(Update(seed, RATE, 1.0, merged), LAYOUT)
    again = decode_update(data, LAYOUT, "tile", levels).merged
    assert isinstance(again, Levels)
    assert again.levels == levels
    assert np.array_equal(again.values, merged.values)
    assert again.scales.tobytes() == merged.scales.tobytes()
    assert len(data) <= update_bytes_max(LAYOUT, "tile")


def test_one_python_integer_at_a_time_gives_the_same() -> None:
    signs = [[1, 1, -1, 1], [1, -1, -1, 1], [1, 1, 1, -1]]  # of three nodes at four components
    weights = (3, 2, 2)
    contributions = [
        (Votes(np.arange(4), np.array(of_node) > 0, np.array([90], np.uint8)), weight)
        for of_node, weight in zip(signs, weights, strict=True)
    ]
    sums = [sum(sign * weight for sign, weight in zip(of, weights, strict=True)) for of in zip(*signs, strict=True)]
    largest = max(map(abs, sums))
    for levels in LEVELS:
        merged = in_levels(levels, contributions)
        due = [int(abs(Fraction(levels * v, largest)) + Fraction(1, 2)) * (1 if v > 0 else -1) for v in sums]
        assert merged.values[:4].tolist() == due


@pytest.mark.parametrize("levels", LEVELS)
def test_the_decode_adds_hardly_any_noise_to_that_of_the_levels(levels: int) -> None:
    """Compared with the inverse transform in floating point."""
    demo = {"magnitude": "tile", "update_levels": levels}
    contract = shapes_contract(demo=demo)
    merged = merged_by(contract, [(random_sized_votes(LAYOUT, 900, seed), seed + 1) for seed in range(5)])
    assert isinstance(merged, Levels)
    replica = random_replica(contract)
    before = {name: tensor.clone() for name, tensor in replica.tensors.items()}
    replica.apply(Update(0, RATE, 1.0, merged), b"")
    values = torch.from_numpy(merged.values).float()
    expected = torch.cat(
        [
            inverse(LAYOUT.matrices(values)).flatten() * gain(is_matrix=True),
            inverse(LAYOUT.vectors(values)).flatten() * gain(is_matrix=False),
        ]
    )
    sizes = np.array([4096] * LAYOUT.matrix_tiles + [64] * LAYOUT.vector_tiles)
    expected *= torch.from_numpy(np.repeat(merged.scales, sizes)) * (127 // levels)
    for tensor in LAYOUT.tensors:
        found, inside = torch.zeros(LAYOUT.components), torch.zeros(LAYOUT.components)
        LAYOUT.add_into(found, tensor, before[tensor.name] - replica.tensors[tensor.name])
        LAYOUT.add_into(inside, tensor, torch.ones(tensor.shape))
        due = expected * inside
        assert (found - due).norm() <= 0.04 * due.norm()


def test_malformed_digits_are_refused() -> None:
    votes = Votes(np.arange(64), np.ones(64, np.bool_), np.array([90], np.uint8))
    fields = unpack_array(encode_update(Update(0, RATE, 1.0, in_levels(3, [(votes, 1)])), LAYOUT), "update", 2)
    size = MATRIX_COMPONENTS // 2
    zeros = 3 + 3 * 7  # two digits that stand for 0

    def refuses(digits: bytes, match: str, stepped: bytes = fields[3]) -> None:
        with pytest.raises(PayloadError, match=match):
            decode_update(pack_array([2, *fields[:3], stepped, compress(digits), fields[5]]), LAYOUT, "tile", 3)

    refuses(bytes(size - 1), f"{size} bytes of levels need {size} bytes; there are {size - 1}")
    refuses(bytes([49]) + bytes(size - 1), "2 digits of 7 levels are below 49; one byte is 49")
    refuses(bytes([zeros]) * size, "a tile is named and has no values")
    refuses(bytes(size), "signs need", stepped=fields[3] + b"\0")
    five = in_levels(1, [(votes, 1)])  # five digits a byte, and 4,096 is not a multiple of five
    fields = unpack_array(encode_update(Update(0, RATE, 1.0, five), LAYOUT), "update", 2)
    digits = bytes(MATRIX_COMPONENTS // 5) + bytes([3])
    with pytest.raises(PayloadError, match="digits after the last"):
        decode_update(pack_array([2, *fields[:4], compress(digits), fields[5]]), LAYOUT, "tile", 1)


@pytest.mark.parametrize(
    ("demo", "message"),
    [
        ({"update_levels": 3}, 'demo.update_levels must be 0 with demo.magnitude = "clipped"'),
        ({"update_levels": 3, "magnitude": "tile", "update_topk": 8}, "one must be 0"),
        ({"update_levels": 128, "magnitude": "tile"}, "less than or equal to 127"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(demo: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RunSpec.model_validate({"demo": demo})


def test_golden_step_in_levels() -> None:
    components = np.arange(LAYOUT.components)
    contributions = []
    for node in range(3):
        signs = np.array([mix64(component + (node << 40)) >> 63 for component in components.tolist()], np.bool_)
        contributions.append((Votes(components, signs, np.full(LAYOUT.tiles, 90 + node, np.uint8)), node + 1))
    contract = contract_of(3)
    replica = random_replica(contract)
    for tensor in replica.tensors.values():
        tensor.fill_(0.125)
    body = encode_update(Update(0, RATE, 1.0, in_levels(3, contributions)), LAYOUT)
    replica.apply(decode_update(body, LAYOUT, "tile", 3), b"")
    assert f"{replica.fingerprint(7):016x}" == "021b0babe398dd80"
