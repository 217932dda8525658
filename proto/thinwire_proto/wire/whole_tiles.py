"""Values on each component of some tiles: takes them out of the tile space for the wire, and puts them back.

So travels a contribution with votes on each component of its tiles, as a mask of the tiles and a sign for each
component. It is the only form of contracts whose nodes send everything (`DemoSpec.sends_whole_tiles`), and follows
those of `component_codec`. An update in levels (`levels_form`) travels in the same way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.wire.packing import Values, pack_signs, unpack_signs

WHOLE = 2
"""The form that follows `component_codec.GAPS` and `RANKS`."""
Tiles = npt.NDArray[np.bool_]
"""Mask of tiles, bool [tiles]."""


def encode_whole(signs: Values, tiles: Tiles, layout: TileLayout) -> list[int | bytes]:
    """Form, number of votes, tiles with votes, nothing, and signs. signs: int8 [components], never 0 in these tiles."""
    taken = take(signs, tiles, layout)
    return [WHOLE, len(taken), pack_signs(tiles), b"", pack_signs(taken > 0)]


def decode_whole(count: int, head: bytes, body: bytes, signs: bytes, layout: TileLayout) -> tuple[Values, Tiles]:
    """The inverse of `encode_whole`. Raises PayloadError."""
    tiles = unpack_signs(head, layout.tiles)
    if count != components_in(tiles, layout) or body:
        raise PayloadError(f"the tiles hold {components_in(tiles, layout)} votes; the payload announces {count}")
    taken = unpack_signs(signs, count).view(np.int8)
    taken *= 2
    taken -= 1
    return spread(taken, tiles, layout), tiles


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
