"""Golden trajectories: all machines and all later versions must reproduce these numbers, or replicas diverge.

Parameters and votes are made from integers alone, so that no random generator is involved. Changing a number here
changes the meaning of contracts, so it must be a deliberate decision.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.small import shapes_contract
from thinwire_proto.contract import Parameter
from thinwire_proto.exact.mix64 import mix64
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, Votes, merge
from thinwire_proto.wire.codec import decode_update, decode_votes, encode_update
from thinwire_proto.wire.rows import Counted, Row


def votes_of(layout: TileLayout, node: int, step: int) -> Votes:
    """About one component in 128, chosen by mix64."""
    numbers = [mix64(component + (node << 40) + (step << 50)) for component in range(layout.components)]
    components = np.array([component for component, number in enumerate(numbers) if number % 128 == 0], np.int64)
    return Votes(components, np.array([bool(numbers[component] >> 63) for component in components]))


@pytest.mark.parametrize(
    ("magnitude", "expected"),
    [
        ("sign", 0x5BEB27D3AAC6F0BC),
        ("clipped", 0x3D9471D3698F17E6),
    ],
)
def test_golden_trajectory(magnitude: str, expected: int) -> None:
    contract = shapes_contract(demo={"magnitude": magnitude})
    tensors = {}
    for number, parameter in enumerate(contract.parameters):
        count = int(np.prod(parameter.shape))
        values = [(mix64((number << 32) + position) >> 40) / 2**24 - 0.5 for position in range(count)]
        tensors[parameter.name] = torch.tensor(values, dtype=torch.float32).view(parameter.shape)
    replica = Replica(contract, tensors, 0, b"")
    for step in range(5):
        votes = [(votes_of(replica.layout, node, step), node + 1) for node in range(3)]
        rate, decay = 2.0**-9, (1.0, 1 - 2.0**-20)[step % 2]
        update = Update(step, rate, decay, merge(votes, replica.layout.components))
        replica.apply(decode_update(encode_update(update, replica.layout), replica.layout), b"")
    assert f"{replica.fingerprint(7):016x}" == f"{expected:016x}"


def test_the_hash_of_a_row_is_known() -> None:
    row = Row(3, 4, 1, 5, 17, b"b" * 32, 99, (Counted("n" * 32, b"c" * 32, 8, 8),), b"p" * 32)
    assert row.hash.hex() == "f25f1d81cc5722e3cd2f07747e72010365e59c84d53dbd109cf50a3741bb5113"


# Payloads written by wire version 2. The compression may change, but these bytes must keep their meaning.

LAYOUT = TileLayout([Parameter(name="m", shape=(64, 128)), Parameter(name="v", shape=(64,))])
COMPONENTS = [1, 2, 700, 4095, 4096, 5000, 6000, 8191, 8192, 8200, 8255]
POSITIVE = [True, False, True, True, False, False, True, False, True, True, False]
BY_GAPS = (
    "9602000bc42828b52ffd2025fd0000c80100ffffbbff4f00ffffff8affffffeaffffffffffffffff9601001c2802"
    "c40c28b52ffd2003190000000736c4024d03"
)
RANKS = "0bc40c28b52ffd2003190000040403c416bc17b09a3a0a1000040088f30fff9f8b3977a4100000c402"
BY_RANKS = f"960201{RANKS}4d03"
WITH_CODES = f"970201{RANKS}4d03c40c28b52ffd20031900000007ff"
RATES = "05ce3f000000ce3f7ffff0"
VOTES = f"9c02{RATES}01{RANKS}750702c40c28b52ffd200319000006030cc40d28b52ffd200421000028fb017f"
WITH_SCALES = (
    f"9d02{RATES}01{RANKS}750702c40c28b52ffd200319000006030cc40d28b52ffd2004210000607b0000"
    "c40f28b52ffd20063100000080803f3e3f"
)


@pytest.mark.parametrize("data", [BY_GAPS, BY_RANKS, WITH_CODES])
def test_contributions_of_version_2_can_be_read(data: str) -> None:
    votes = decode_votes(bytes.fromhex(data), LAYOUT, 4, "tile" if data == WITH_CODES else "sign")
    assert votes.components.tolist() == COMPONENTS
    assert votes.positive.tolist() == POSITIVE
    assert votes.codes is None if data != WITH_CODES else votes.codes.tolist() == [0, 7, 255]  # type: ignore[union-attr]


@pytest.mark.parametrize(("data", "largest"), [(VOTES, (300, 32767)), (WITH_SCALES, (100, 127))])
def test_updates_of_version_2_can_be_read(data: str, largest: tuple[int, int]) -> None:
    update = decode_update(bytes.fromhex(data), LAYOUT, "sign" if data == VOTES else "tile")
    assert (update.step, update.learning_rate, update.decay) == (5, 0.5, 1 - 2.0**-20)
    assert isinstance(update.merged, Merged)
    assert update.merged.components.tolist() == COMPONENTS
    assert update.merged.values.tolist() == [1, -1, 2, -3, 1, 1, 1, -largest[0], 1, 1, largest[1]]
    scales = update.merged.scales
    assert scales is None if data == VOTES else scales.tolist() == [0.5, 0.25, 1.0]  # type: ignore[union-attr]
