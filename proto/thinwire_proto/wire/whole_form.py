"""A contribution with votes on each component of its tiles: a mask of the tiles, and a sign for each component.

It follows the forms of `component_codec`, and is the only one of contracts whose nodes send everything
(`DemoSpec.sends_whole_tiles`).
"""

from __future__ import annotations

import numpy as np

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire.packing import Values, pack_signs, unpack_signs
from thinwire_proto.wire.whole_tiles import Tiles, components_in, spread, take

WHOLE = 2
"""The form that follows `component_codec.GAPS` and `RANKS`."""


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
