"""Targets: the payload codec, for contributions and updates, with and without magnitudes, and of whole tiles.

The measured memory is that of Python and numpy, not that of zstandard. The latter is bounded by the size in each
frame's header, which is checked first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.mutations import damage_msgpack
from fuzz.target import Target
from thinwire_proto.contract import WEIGHT_SUM_MAX, Magnitude, Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.aggregation import SizedMerger
from thinwire_proto.exact.decode import VOTE_MAX
from thinwire_proto.exact.magnitudes import SCALE_MAX, SCALE_MIN, TABLE, tiles_with
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, Merged, Votes, WholeVotes, merge, tile_ranges
from thinwire_proto.wire.codec import (
    contribution_bytes_max,
    decode_update,
    decode_votes,
    encode_update,
    encode_votes,
    update_bytes_max,
)
from thinwire_proto.wire.whole_tiles import tiles_in

LAYOUT = TileLayout([Parameter(name="m", shape=(400, 650)), Parameter(name="v", shape=(130,))])
"""For contributions. It is so large that the memory bound is well above the overhead of any call."""
UPDATE_LAYOUT = TileLayout([Parameter(name="m", shape=(100, 150)), Parameter(name="v", shape=(130,))])
"""For updates, which may contain all components."""
K = 24
LEVELS = 3
BYTES_A_COMPONENT = 40
"""Memory that a reader may use for each component that the contract allows: int64 numbers, copies, and
unpacked frames."""
BYTES_OVERHEAD = 1 << 13


def payload_targets() -> list[Target]:
    """One target for each kind of payload."""
    rng = np.random.default_rng(1)
    numbers = (0, 1, 3, 19, K)
    votes = [votes_of(LAYOUT, k, rng) for k in numbers]
    sized = [votes_of(LAYOUT, k, rng, sized=True) for k in numbers]
    counted = [votes_of(UPDATE_LAYOUT, k, rng) for k in numbers]
    contributions = [[(one, 1 + 300 * number), (counted[-1], 2)] for number, one in enumerate(counted)]
    contributions.append([(votes_of(UPDATE_LAYOUT, MATRIX_COMPONENTS, rng), 1)])  # the largest possible update
    merged = [merge(of_round, UPDATE_LAYOUT.components) for of_round in contributions]
    sized_updates = [sized_update(votes_of(UPDATE_LAYOUT, k, rng, sized=True)) for k in numbers]
    leveled = [sized_update(votes_of(UPDATE_LAYOUT, k, rng, sized=True), LEVELS) for k in (0, K, MATRIX_COMPONENTS)]
    whole = [whole_votes(LAYOUT, absent, rng) for absent in (0.0, 0.5, 1.0)]
    in_levels = [whole_votes(LAYOUT, absent, rng, LEVELS) for absent in (0.0, 0.5, 1.0)]
    updates = [Update(7, 0.5, 1.0, one) for one in merged]
    contribution = (
        BYTES_A_COMPONENT * LAYOUT.selected_max(K) + contribution_bytes_max(LAYOUT, K, "tile") + BYTES_OVERHEAD
    )
    of_all = BYTES_A_COMPONENT * LAYOUT.components + contribution_bytes_max(LAYOUT, MATRIX_COMPONENTS, "tile")
    update = BYTES_A_COMPONENT * UPDATE_LAYOUT.components + update_bytes_max(UPDATE_LAYOUT, "tile") + BYTES_OVERHEAD
    return [
        _target("contribution", lambda data: decode_votes(data, LAYOUT, K), write_votes, check_votes_of(K),
                [write_votes(one) for one in votes], contribution),
        _target("contribution with magnitudes", lambda data: decode_votes(data, LAYOUT, K, "tile"), write_votes,
                check_votes_of(K), [write_votes(one) for one in sized], contribution),
        _target("contribution of whole tiles",
                lambda data: decode_votes(data, LAYOUT, MATRIX_COMPONENTS, "tile", whole=True),
                write_votes, check_votes_of(MATRIX_COMPONENTS), [write_votes(one) for one in whole],
                of_all + BYTES_OVERHEAD),
        _target("contribution in levels",
                lambda data: decode_votes(data, LAYOUT, MATRIX_COMPONENTS, "tile", whole=True, levels=LEVELS),
                write_votes, check_votes_of(MATRIX_COMPONENTS), [write_votes(one) for one in in_levels],
                of_all + BYTES_OVERHEAD),
        _target("update", lambda data: decode_update(data, UPDATE_LAYOUT), write_update, check_update("sign"),
                [write_update(one) for one in updates], update),
        _target("update with magnitudes", lambda data: decode_update(data, UPDATE_LAYOUT, "tile"), write_update,
                check_update("tile"), [write_update(one) for one in sized_updates], update),
        _target("update in levels", lambda data: decode_update(data, UPDATE_LAYOUT, "tile", LEVELS), write_update,
                check_update("tile"), [write_update(one) for one in leveled], update),
    ]  # fmt: skip


def _target(
    name: str,
    read: Callable[[bytes], Any],
    write: Callable[[Any], bytes],
    check: Callable[[object], None],
    valid: list[bytes],
    memory_max: int,
) -> Target:
    """A target whose results must also be equal when they are written and read again."""

    def checked(found: object) -> None:
        check(found)
        written = write(found)
        assert write(read(written)) == written, "it changes when written and read again"

    return Target(name, read, valid, damage_msgpack, checked, (PayloadError,), memory_max)


def write_votes(votes: Votes) -> bytes:
    return encode_votes(votes, LAYOUT)


def write_update(update: Update) -> bytes:
    return encode_update(update, UPDATE_LAYOUT)


def votes_of(layout: TileLayout, k: int, rng: np.random.Generator, *, sized: bool = False) -> Votes:
    """k uniform components in each tile."""
    parts = [
        np.sort(rng.permutation(MATRIX_COMPONENTS)[:k]) + MATRIX_COMPONENTS * tile
        for tile in range(layout.matrix_tiles)
    ]
    first = layout.matrix_components
    parts += [
        np.sort(rng.permutation(VECTOR_COMPONENTS)[:k]) + first + VECTOR_COMPONENTS * tile
        for tile in range(layout.vector_tiles)
    ]
    components = np.concatenate(parts)
    codes = rng.integers(0, len(TABLE), layout.tiles if k else 0).astype(np.uint8) if sized else None
    return Votes(components, rng.random(len(components)) < 0.5, codes)


def whole_votes(layout: TileLayout, absent: float, rng: np.random.Generator, levels: int = 0) -> WholeVotes:
    """Votes on all components of each tile, but of about a share of `absent` of the tiles."""
    each = np.array([-1, 1] if not levels else range(-levels, levels + 1), np.int8)
    signs, voted = np.zeros(layout.components, np.int8), rng.random(layout.tiles) >= absent
    for part, first, size in tile_ranges(layout):
        tiles = signs[part].reshape(-1, size)
        chosen = voted[first : first + len(tiles)]
        tiles[chosen] = rng.choice(each, tiles[chosen].shape)
    return WholeVotes(signs, rng.integers(0, len(TABLE), np.count_nonzero(voted)).astype(np.uint8), levels)


def sized_update(votes: Votes, levels: int = 0) -> Update:
    merger = SizedMerger(UPDATE_LAYOUT, 1.0, levels=levels)
    merger.add(votes, 3)
    return Update(7, 0.5, 1.0, merger.merged())


def check_votes_of(k: int) -> Callable[[object], None]:
    """Return a function that asserts that votes can be merged. k: the most on a tile."""

    def check(found: object) -> None:
        assert isinstance(found, Votes)
        assert np.all(np.diff(found.components) > 0), "not ascending"
        assert found.components.min(initial=0) >= 0, "below the tile space"
        assert found.components.max(initial=0) < LAYOUT.components, "beyond the tile space"
        assert len(found.positive) == len(found.components) == len(found), "signs"
        tiles, counts = tiles_with(found.components, LAYOUT)
        assert counts.max(initial=0) <= k, "too many in a tile"
        assert found.codes is None or len(found.codes) == len(tiles), "codes"
        assert np.array_equal(found.tiles(LAYOUT), tiles), "tiles"

    return check


def check_update(magnitude: Magnitude) -> Callable[[object], None]:
    """Return a function that asserts that an update can be applied."""

    def check(found: object) -> None:
        assert isinstance(found, Update)
        merged = found.merged
        assert 0 <= found.learning_rate <= 1, "rate"
        assert 0 <= found.decay <= 1, "decay"
        if isinstance(merged, Levels):
            assert len(merged.values) == UPDATE_LAYOUT.components, "values"
            assert np.abs(merged.values.astype(np.int16)).max() <= LEVELS, "levels"
            assert np.array_equal(tiles_in(merged.values, UPDATE_LAYOUT), merged.scales > 0), "tiles with scales"
            assert len(merged.scales) == UPDATE_LAYOUT.tiles, "scales of tiles"
            return
        assert isinstance(merged, Merged)
        assert np.all(np.diff(merged.components) > 0), "not ascending"
        assert merged.components.min(initial=0) >= 0, "below the tile space"
        assert merged.components.max(initial=0) < UPDATE_LAYOUT.components, "beyond the tile space"
        assert len(merged.values) == len(merged.components), "values"
        sizes = np.abs(merged.values.astype(np.int64))
        assert np.all((sizes >= 1) & (sizes <= (VOTE_MAX if magnitude == "tile" else WEIGHT_SUM_MAX))), "sizes"
        assert (merged.scales is None) == (magnitude != "tile"), "scales"
        if merged.scales is not None:
            assert len(merged.scales) == len(tiles_with(merged.components, UPDATE_LAYOUT)[0]), "scales of tiles"
            assert np.all((merged.scales >= SCALE_MIN) & (merged.scales <= SCALE_MAX)), "range of scales"

    return check
