"""The attacks on votes in levels: those of `attacks`, for nodes that send a level of each component and a size of each
tile, and one that only they have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from bench.adversary import attacks
from bench.adversary.attacks import Attack, Knowledge
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Votes, WholeVotes

Values = npt.NDArray[np.int8]
"""A level of each component."""
CODE_MAX = 255
"""The code of the largest size."""


def flip(known: Knowledge) -> Votes:
    own = _whole(known.own)
    return _sent(known, -own.signs)


def random(known: Knowledge) -> Votes:
    own = _whole(known.own)
    return _sent(known, known.drawn.integers(-own.levels, own.levels, len(own.signs), np.int8, endpoint=True))


def silence(known: Knowledge) -> Votes:
    values = np.zeros_like(_whole(known.own).signs)
    values[0] = 1
    return _sent(known, values)


def collude(known: Knowledge) -> Votes:
    own = _whole(known.own)
    chosen = known.agreed.random(len(own.signs)) < 0.5
    agreed = known.agreed.choice(np.array([-own.levels, own.levels], np.int8), len(own.signs))
    return _sent(known, np.where(chosen, agreed, own.signs))


def oppose(known: Knowledge) -> Votes:
    own = _whole(known.own)
    total = sum((_whole(votes).signs.astype(np.int64) for votes in known.others), np.zeros(len(own.signs), np.int64))
    least = np.concatenate(
        [
            np.repeat(np.quantile(np.abs(part).reshape(-1, size), 0.75, axis=1), size)
            for part, size in _kinds(total, known.layout)
        ]
    )
    return _sent(known, np.where(np.abs(total) > least, -own.levels * np.sign(total), own.signs).astype(np.int8))


def shout(known: Knowledge) -> Votes:
    """Honest votes with every sign reversed, at the largest level, and the largest size for each tile."""
    own = _whole(known.own)
    codes = np.full(len(own.tiles(known.layout)), CODE_MAX, np.uint8)
    return WholeVotes((-own.levels * np.sign(own.signs)).astype(np.int8), codes, own.levels)


LEVEL_ATTACKS: Mapping[str, Attack] = {
    attack.__name__: attack for attack in (flip, random, attacks.copy, silence, attacks.stale, collude, oppose, shout)
}


def _whole(votes: Votes) -> WholeVotes:
    assert isinstance(votes, WholeVotes)
    return votes


def _sent(known: Knowledge, values: Values) -> Votes:
    """These levels, with the sizes of the node's own tiles; a tile without honest votes has the smallest size."""
    own = _whole(known.own)
    assert own.codes is not None
    codes = np.zeros(known.layout.tiles, np.uint8)
    codes[own.tiles(known.layout)] = own.codes
    found = WholeVotes(values, codes, own.levels)
    return WholeVotes(values, codes[found.tiles(known.layout)], own.levels)


def _kinds(of_components: npt.NDArray[np.generic], layout: TileLayout) -> list[tuple[npt.NDArray[np.generic], int]]:
    """The components of matrices and those of vectors, and the components of a tile of each, where there are any."""
    split = layout.matrix_components
    parts = (of_components[:split], MATRIX_COMPONENTS), (of_components[split:], VECTOR_COMPONENTS)
    return [(part, size) for part, size in parts if len(part)]
