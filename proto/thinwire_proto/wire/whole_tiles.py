"""Values on each component of some tiles: takes them out of the tile space for the wire, and puts them back.

So travels a contribution with votes on each component of its tiles, as a mask of the tiles and a sign or a level
(`levels_form`) for each component. They are the only forms of contracts whose nodes send everything
(`DemoSpec.sends_whole_tiles`), and follow those of `component_codec`. An update in levels travels in the same way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.wire.levels_form import pack_levels, unpack_levels
from thinwire_proto.wire.packing import Values, pack_signs, unpack_signs

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
