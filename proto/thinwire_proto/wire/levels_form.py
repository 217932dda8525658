"""An update in a few levels: the digits of all components of each tile that steps, for `demo.update_levels`.

The sum of many nodes' votes is nonzero at most components. Listing those that are not, with a sign and a size for each,
takes 4.5 bits a component for sixteen nodes that send everything, and their entropy in seven levels is 1.9. So a
component is a digit, one byte holds as many digits as fit, and zstandard's Huffman codes, which spend whole bits on a
byte, come within a few per cent of the entropy.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.wire.packing import Bytes, compress, decompress_exactly

Values = npt.NDArray[np.int8]


def digits_of_a_byte(levels: int) -> int:
    """How many digits of base 2 · levels + 1 a byte holds: 5 with one level, 2 with three to seven, 1 from eight on."""
    base = 2 * levels + 1
    return next(count for count in (5, 3, 2, 1) if base**count <= 1 << 8)


def pack_levels(values: Values, stepped: npt.NDArray[np.bool_], levels: int, layout: TileLayout) -> bytes:
    """Encode the components of the tiles that step. values: int8 [components] within ±levels."""
    kinds = zip(_kinds(values, layout), _kinds_of_tiles(stepped, layout), strict=True)
    chosen = np.concatenate([tiles[of_kind].reshape(-1) for tiles, of_kind in kinds])
    each, base = digits_of_a_byte(levels), 2 * levels + 1
    packed = np.zeros(-(-len(chosen) // each), np.uint8)
    for place in range(each):
        digits = chosen[place::each]
        packed[: len(digits)] += ((digits + levels).astype(np.uint8)) * np.uint8(base**place)
    return compress(packed.tobytes())


def unpack_levels(data: bytes, stepped: npt.NDArray[np.bool_], levels: int, layout: TileLayout) -> Values:
    """The inverse of `pack_levels`, with 0 in the tiles that do not step. Raises PayloadError."""
    matrices, vectors = (int(np.count_nonzero(of_kind)) for of_kind in _kinds_of_tiles(stepped, layout))
    count, each = matrices * MATRIX_COMPONENTS + vectors * VECTOR_COMPONENTS, digits_of_a_byte(levels)
    packed = decompress_exactly(data, -(-count // each), 1, "bytes of levels")
    _check_digits(packed, count, levels)
    chosen = _table(levels)[packed].reshape(-1)[:count]
    if matrices + vectors == layout.tiles:
        return chosen
    values = np.zeros(layout.components, np.int8)
    split = matrices * MATRIX_COMPONENTS
    for tiles, of_kind, part in zip(
        _kinds(values, layout), _kinds_of_tiles(stepped, layout), (chosen[:split], chosen[split:]), strict=True
    ):
        tiles[of_kind] = part.reshape(-1, tiles.shape[1])
    return values


def stepping(values: Values, layout: TileLayout) -> npt.NDArray[np.bool_]:
    """Mask of the tiles that have a value, bool [tiles]."""
    return np.concatenate([tiles.any(axis=1) for tiles in _kinds(values, layout)])


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


def _kinds(values: Values, layout: TileLayout) -> tuple[Values, Values]:
    """The matrix tiles, [n, 4096], and the vector tiles, [n, 64], of a flat array, as views."""
    split = layout.matrix_components
    return values[:split].reshape(-1, MATRIX_COMPONENTS), values[split:].reshape(-1, VECTOR_COMPONENTS)


def _kinds_of_tiles(
    tiles: npt.NDArray[np.bool_], layout: TileLayout
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    return tiles[: layout.matrix_tiles], tiles[layout.matrix_tiles :]
