"""An update in sign form leads to the same bits as its votes, and is used only where it is smaller."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.small import random_replica, random_votes, shapes_contract
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, merge
from thinwire_proto.wire.codec import decode_update, encode_update
from thinwire_proto.wire.sign_form import signs_of

RATE, DECAY = float(np.float32(1e-3)), float(np.float32(1 - 3e-5))
LAYOUT = TileLayout(shapes_contract().parameters)


def update_of(k: int, nodes: int, step: int) -> Update:
    votes = [(random_votes(LAYOUT, k, 10 * step + node), node + 1) for node in range(nodes)]
    return Update(step, RATE, DECAY, merge(votes, LAYOUT.components))


@pytest.mark.parametrize("step", [4, 5])
def test_signs_lead_to_the_same_bits_as_votes(step: int) -> None:
    """With padded shapes, tiles without votes, and both parities of the tie-break for X = 0."""
    contract = shapes_contract(demo={"magnitude": "sign"})
    by_votes, by_signs = (random_replica(contract, step=step) for _ in range(2))
    update = update_of(3, 2, step)
    assert isinstance(update.merged, Merged)
    signs = replace(update, merged=signs_of(update.merged, LAYOUT, step))
    by_votes.apply(update, b"")
    by_signs.apply(decode_update(encode_update(signs, LAYOUT), LAYOUT), b"")
    assert by_votes.state_hash() == by_signs.state_hash()
    assert by_votes.state_hash() != random_replica(contract, step=step).state_hash()
