"""Values on each component of some tiles: takes them out of the tile space for the wire, and puts them back.

So travels a contribution with votes on each component of its tiles, as a mask of the tiles and a sign or a level for
each component. They are the only forms of contracts whose nodes send everything
(`DemoSpec.sends_whole_tiles`), and follow those of `component_codec`. An update in levels travels in the same way.

The sum of many nodes' votes is nonzero at most components. Listing those that are not, with a sign and a size for each,
takes 4.5 bits a component for sixteen nodes that send everything, and their entropy in seven levels is 1.9. So the
level of a component is a digit, one byte holds as many digits as fit, and zstandard's Huffman codes, which spend whole
bits on a byte, come within a few per cent of the entropy.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.wire.packing import Bytes, Values, compress_digits, decompress_exactly, pack_signs, unpack_signs

PLACES = (5, 3, 2, 1)
BYTES_AT_ONCE = 1 << 18


def digits_of_a_byte(levels: int) -> int:
    """How many digits of base 2 · levels + 1 a byte holds: 5 with one level, 2 with three to seven, 1 from eight on."""
    return next(count for count in PLACES if (2 * levels + 1) ** count <= 1 << 8)


def pack_levels(values: Values, levels: int) -> bytes:
    """Encode values within ±levels."""
    each, base = digits_of_a_byte(levels), 2 * levels + 1
    packed = np.zeros(-(-len(values) // each), np.uint8)
    for start in range(0, len(packed), BYTES_AT_ONCE):
        some, part = values[start * each : (start + BYTES_AT_ONCE) * each], packed[start : start + BYTES_AT_ONCE]
        for place in range(each):
            digits = some[place::each]
            part[: len(digits)] += (digits + np.int8(levels)).view(np.uint8) * np.uint8(base**place)
    return compress_digits(packed.data)


def unpack_levels(data: bytes, count: int, levels: int) -> Values:
    """The inverse of `pack_levels`. Raises PayloadError."""
    packed = decompress_exactly(data, -(-count // digits_of_a_byte(levels)), 1, "bytes of levels")
    _check_digits(packed, count, levels)
    return _table(levels)[packed].reshape(-1)[:count]


def _check_digits(packed: Bytes, count: int, levels: int) -> None:
    each, base = digits_of_a_byte(levels), 2 * levels + 1
    if packed.max(initial=0) >= base**each:
        raise PayloadError(f"{each} digits of {base} levels are below {base**each}; one byte is {packed.max()}")
    in_last = count % each
    if in_last and packed[-1] >= base**in_last:
        raise PayloadError("there are digits after the last component")


@lru_cache(maxsize=4)
def _table(levels: int) -> Values:
    """The digits of each byte, less `levels`, int8 [256, digits]."""
    each, base = digits_of_a_byte(levels), 2 * levels + 1
    numbers = np.arange(1 << 8)
    return np.stack([numbers // base**place % base - levels for place in range(each)], axis=1).astype(np.int8)


WHOLE, LEVELS = 2, 3
"""The forms that follow `component_codec.GAPS` and `RANKS`."""
Tiles = npt.NDArray[np.bool_]
"""Mask of tiles, bool [tiles]."""


def encode_whole(signs: Values, tiles: Tiles, layout: TileLayout, levels: int = 0) -> list[int | bytes]:
    """Form, number of votes, tiles with votes, nothing, and signs or levels.

    signs: int8 [components]; without levels never 0 in these tiles, else within ±levels.
    """
    taken = take(signs, tiles, layout)
    packed = pack_levels(taken, levels) if levels else pack_signs(taken > 0)
    return [LEVELS if levels else WHOLE, len(taken), pack_signs(tiles), b"", packed]


def decode_whole(
    count: int, head: bytes, body: bytes, signs: bytes, layout: TileLayout, levels: int = 0
) -> tuple[Values, Tiles]:
    """The inverse of `encode_whole`. Raises PayloadError."""
    tiles = unpack_signs(head, layout.tiles)
    if count != components_in(tiles, layout) or body:
        raise PayloadError(f"the tiles hold {components_in(tiles, layout)} votes; the payload announces {count}")
    if levels:
        return decode_levels(signs, tiles, layout, levels), tiles
    taken = unpack_signs(signs, count).view(np.int8)
    taken *= 2
    taken -= 1
    return spread(taken, tiles, layout), tiles


def decode_levels(digits: bytes, tiles: Tiles, layout: TileLayout, levels: int) -> Values:
    """The values of these tiles, int8 [components], from the digits of all their components. Raises PayloadError."""
    values = spread(unpack_levels(digits, components_in(tiles, layout), levels), tiles, layout)
    if not np.array_equal(tiles_in(values, layout), tiles):
        raise PayloadError("a tile is named and has no values")
    return values


def tiles_in(values: Values, layout: TileLayout) -> Tiles:
    """The tiles that have a value other than 0. values: [components]."""
    return np.concatenate([tiles.any(axis=1) for tiles in _kinds(values, layout)])


def components_in(tiles: Tiles, layout: TileLayout) -> int:
    matrices, vectors = (int(np.count_nonzero(of_kind)) for of_kind in _kinds_of(tiles, layout))
    return matrices * MATRIX_COMPONENTS + vectors * VECTOR_COMPONENTS


def take(values: Values, tiles: Tiles, layout: TileLayout) -> Values:
    """The values of these tiles, one tile after the other. values: [components]; not copied if they are all."""
    if tiles.all():
        return values
    kinds = zip(_kinds(values, layout), _kinds_of(tiles, layout), strict=True)
    return np.concatenate([of_kind[chosen].reshape(-1) for of_kind, chosen in kinds])


def spread(taken: Values, tiles: Tiles, layout: TileLayout) -> Values:
    """The inverse of `take`, with 0 in the other tiles."""
    if tiles.all():
        return taken
    values = np.zeros(layout.components, np.int8)
    chosen_matrices, chosen_vectors = _kinds_of(tiles, layout)
    matrices, vectors = _kinds(values, layout)
    split = int(np.count_nonzero(chosen_matrices)) * MATRIX_COMPONENTS
    matrices[chosen_matrices] = taken[:split].reshape(-1, MATRIX_COMPONENTS)
    vectors[chosen_vectors] = taken[split:].reshape(-1, VECTOR_COMPONENTS)
    return values


def _kinds(values: Values, layout: TileLayout) -> tuple[Values, Values]:
    """The matrix tiles, [n, 4096], and the vector tiles, [n, 64], of a flat array, as views."""
    split = layout.matrix_components
    return values[:split].reshape(-1, MATRIX_COMPONENTS), values[split:].reshape(-1, VECTOR_COMPONENTS)


def _kinds_of(tiles: Tiles, layout: TileLayout) -> tuple[Tiles, Tiles]:
    return tiles[: layout.matrix_tiles], tiles[layout.matrix_tiles :]
