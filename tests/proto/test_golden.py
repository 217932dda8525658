"""Golden trajectories: every machine and every later version must come to these numbers, or replicas part.

Parameters and votes are made from integers alone, so that no generator has a part in it. A change of a number here is a
change of the contract's meaning: a decision, not an accident.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.small import shapes_contract
from thinwire_proto.codec import Update, decode_update, encode_update
from thinwire_proto.fingerprint import mix64
from thinwire_proto.replica import Replica
from thinwire_proto.rows import Counted, Row
from thinwire_proto.tiles import TileLayout
from thinwire_proto.votes import Votes, merge


def votes_of(layout: TileLayout, node: int, step: int) -> Votes:
    """About one component in 128, by mix64."""
    numbers = [mix64(place + (node << 40) + (step << 50)) for place in range(layout.components)]
    components = np.array([place for place, number in enumerate(numbers) if number % 128 == 0], np.int64)
    return Votes(components, np.array([bool(numbers[place] >> 63) for place in components]))


@pytest.mark.parametrize(
    ("transform", "magnitude", "expected"),
    [
        ("dct", "sign", 0x5BEB27D3AAC6F0BC),
        ("hadamard", "sign", 0x09AB5572FB051BB6),
        ("dct", "clipped", 0x3D9471D3698F17E6),
        ("hadamard", "clipped", 0x29358362FC91688F),
    ],
)
def test_five_updates_of_three_nodes_lead_to_the_known_fingerprint(
    transform: str, magnitude: str, expected: int
) -> None:
    contract = shapes_contract(demo={"transform": transform, "magnitude": magnitude})
    tensors = {}
    for number, parameter in enumerate(contract.parameters):
        count = int(np.prod(parameter.shape))
        values = [(mix64((number << 32) + place) >> 40) / 2**24 - 0.5 for place in range(count)]
        tensors[parameter.name] = torch.tensor(values, dtype=torch.float32).view(parameter.shape)
    replica = Replica(contract, tensors, 0, b"")
    for step in range(5):
        votes = [(votes_of(replica.layout, node, step), node + 1) for node in range(3)]
        rate, decay = 2.0**-9, (1.0, 1 - 2.0**-20)[step % 2]
        update = Update(step, rate, decay, merge(votes, replica.layout.components))
        replica.apply(decode_update(encode_update(update), replica.layout), b"")
    assert f"{replica.fingerprint(7):016x}" == f"{expected:016x}"


def test_the_hash_of_a_row_is_known() -> None:
    row = Row(3, 4, 1, 5, 17, b"b" * 32, 99, (Counted("n" * 32, b"c" * 32, 8, 8),), b"p" * 32)
    assert row.hash.hex() == "79557b8881d6303ea3f69d127d88154f2ae70390157e3b6008c66b8b47a144bc"
