"""The payload codec: votes and updates to bytes and back.

A contribution consists of its components (`component_codec`) and one sign bit for each, or of some tiles and the signs
or levels of all their components (`whole_tiles`). An update has in addition the size of each merged vote. Where nodes
seldom choose the same component nearly all sizes are 1, so several are packed into one byte before zstandard compresses
them. With `demo.update_levels` an update contains the level of each component.

With magnitudes, a contribution also carries one code a tile, and an update one scale a tile. A payload of the other
kind is refused. Everything invalid (truncated, too long, too many components in a tile, …) raises PayloadError, before
memory is allocated beyond the contract's bounds.

docs/wire.md describes the layouts (msgpack arrays, `VERSION` first). Each change of a layout needs a new version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import WEIGHT_SUM_MAX, Magnitude
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.decode import VOTE_MAX
from thinwire_proto.exact.magnitudes import SCALE_MAX, SCALE_MIN
from thinwire_proto.exact.schedule import to_float32
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import CHUNK, Levels, Merged, Votes, WholeVotes
from thinwire_proto.wire import component_codec
from thinwire_proto.wire.component_codec import decode_components, encode_components
from thinwire_proto.wire.packing import (
    check_types,
    compress,
    compressed_max,
    decompress_exactly,
    from_planes,
    pack_array,
    pack_bits,
    pack_signs,
    packed_bytes,
    planes,
    unpack_array,
    unpack_bits,
    unpack_signs,
)
from thinwire_proto.wire.whole_tiles import (
    LEVELS,
    WHOLE,
    decode_levels,
    decode_whole,
    digits_of_a_byte,
    encode_whole,
    pack_levels,
    take,
    tiles_in,
)

VERSION = 2
ENVELOPE_BYTES_MAX = 128
"""Upper bound on msgpack heads, frame heads and numbers."""
WIDTHS = (1, 2, 4, 8)
"""Possible bit widths for the size of a merged vote. The remainders of larger sizes follow separately."""


def contribution_bytes_max(
    layout: TileLayout, k: int, magnitude: Magnitude = "sign", *, whole: bool = False, levels: int = 0
) -> int:
    """Upper bound on the size of any contribution of the contract. whole: `DemoSpec.sends_whole_tiles`. levels:
    `demo.vote_levels`."""
    selected = layout.selected_max(k)
    codes = compressed_max(layout.tiles) if magnitude == "tile" else 0
    if levels:
        digits = compressed_max(layout.components // digits_of_a_byte(levels) + 1)
        return layout.tiles // 8 + 1 + digits + codes + ENVELOPE_BYTES_MAX
    if whole:
        return layout.tiles // 8 + layout.components // 8 + 2 + codes + ENVELOPE_BYTES_MAX
    return component_codec.encoded_max(selected, layout) + selected // 8 + 1 + codes + ENVELOPE_BYTES_MAX


def update_bytes_max(layout: TileLayout, magnitude: Magnitude = "sign", levels: int = 0) -> int:
    """Upper bound on the size of any update of the contract. levels: `demo.update_levels`."""
    count = layout.components
    if levels:
        digits = compressed_max(count // digits_of_a_byte(levels) + 1)
        return layout.tiles // 8 + 1 + digits + compressed_max(2 * layout.tiles) + ENVELOPE_BYTES_MAX
    sizes = compressed_max(count) + compressed_max(2 * count)
    scales = compressed_max(2 * layout.tiles) if magnitude == "tile" else 0
    return component_codec.encoded_max(count, layout) + count // 8 + 1 + sizes + scales + ENVELOPE_BYTES_MAX


def encode_votes(votes: Votes, layout: TileLayout) -> bytes:
    if isinstance(votes, WholeVotes):
        fields = [VERSION, *encode_whole(votes.signs, tiles_in(votes.signs, layout), layout, votes.levels)]
    else:
        fields = [VERSION, *encode_components(votes.components, layout), pack_signs(votes.positive)]
    return pack_array(fields if votes.codes is None else [*fields, compress(votes.codes.tobytes())])


def decode_votes(
    data: bytes, layout: TileLayout, k: int, magnitude: Magnitude = "sign", *, whole: bool = False, levels: int = 0
) -> Votes:
    """Decode votes with at most k components a tile, and with magnitudes one code a tile that has votes.

    whole: whether they must be on whole tiles: `DemoSpec.sends_whole_tiles`. levels: `demo.vote_levels`. Raises
    PayloadError.
    """
    size_max = contribution_bytes_max(layout, k, magnitude, whole=whole, levels=levels)
    if len(data) > size_max:
        raise PayloadError(f"a contribution has at most {size_max} bytes; this has {len(data)}")
    types = (*component_codec.FIELD_TYPES, bytes) + ((bytes,) if magnitude == "tile" else ())
    fields = unpack_array(data, "contribution", VERSION)
    check_types(fields, types, _described("contribution", magnitude))
    form, count, head, body, signs, *more = fields
    if whole:
        wanted = LEVELS if levels else WHOLE
        if form != wanted or not more:
            raise PayloadError(f"the votes of this contract are on whole tiles, form {wanted}; these have form {form}")
        all_signs, voted = decode_whole(count, head, body, signs, layout, levels)
        of_tiles = decompress_exactly(more[0], int(np.count_nonzero(voted)), 1, "codes of tiles")
        return WholeVotes(all_signs, of_tiles, levels)
    components, tile_counts = decode_components(form, count, head, body, layout, k, layout.selected_max(k))
    tiles = int(np.count_nonzero(tile_counts))
    codes = decompress_exactly(more[0], tiles, 1, "codes of tiles") if more else None
    return Votes(components, unpack_signs(signs, count), codes)


def encode_update(update: Update, layout: TileLayout) -> bytes:
    head = [VERSION, update.step, _float_bits(update.learning_rate), _float_bits(update.decay)]
    merged = update.merged
    if isinstance(merged, Levels):
        stepped = merged.scales > 0
        digits = pack_levels(take(merged.values, stepped, layout), merged.levels)
        return pack_array([*head, pack_signs(stepped), digits, _encode_scales(merged.scales[stepped])])
    values = merged.values
    votes = [*encode_components(merged.components, layout), pack_signs(values > 0), *_encode_sizes(values)]
    if merged.scales is None:
        return pack_array([*head, *votes])
    if values.max(initial=0) > VOTE_MAX or values.min(initial=0) < -VOTE_MAX:
        raise ValueError("with magnitudes, values are int8")
    return pack_array([*head, *votes, _encode_scales(merged.scales)])


def decode_update(data: bytes, layout: TileLayout, magnitude: Magnitude = "sign", levels: int = 0) -> Update:
    """Decode an update. levels: the contract's `demo.update_levels`. Raises PayloadError."""
    size_max = update_bytes_max(layout, magnitude, levels)
    if len(data) > size_max:
        raise PayloadError(f"an update has at most {size_max} bytes; this has {len(data)}")
    rest = unpack_array(data, "update", VERSION)
    check_types(rest[:3], (int, int, int), "update")
    step, (rate, decay) = rest[0], [_bits_float(bits) for bits in rest[1:3]]
    if not (0 <= rate <= 1 and 0 <= decay <= 1):
        raise PayloadError(f"learning rate and decay must lie between 0 and 1; they are {rate} and {decay}")
    if levels:
        return Update(step, rate, decay, _decode_levels(rest[3:], layout, levels))
    return Update(step, rate, decay, _decode_merged(rest[3:], layout, magnitude))


def _decode_merged(fields: list[Any], layout: TileLayout, magnitude: Magnitude) -> Merged:
    types = (*component_codec.FIELD_TYPES, bytes, int, bytes, bytes) + ((bytes,) if magnitude == "tile" else ())
    check_types(fields, types, _described("update", magnitude))
    form, count, head, body, signs, width, sizes, large, *more = fields
    components, tile_counts = decode_components(form, count, head, body, layout, MATRIX_COMPONENTS, layout.components)
    values = _decode_sizes(width, sizes, large, count, VOTE_MAX if more else WEIGHT_SUM_MAX)
    values[~unpack_signs(signs, count)] *= -1
    scales = _decode_scales(more[0], int(np.count_nonzero(tile_counts))) if more else None
    return Merged(components, values, scales)


def _decode_levels(fields: list[Any], layout: TileLayout, levels: int) -> Levels:
    check_types(fields, (bytes, bytes, bytes), f"update of version {VERSION} with demo.update_levels = {levels}")
    stepped = unpack_signs(fields[0], layout.tiles)
    values = decode_levels(fields[1], stepped, layout, levels)
    scales = np.zeros(layout.tiles, np.float32)
    scales[stepped] = _decode_scales(fields[2], int(np.count_nonzero(stepped)))
    return Levels(levels, values, scales)


def _encode_sizes(values: npt.NDArray[np.int16]) -> list[int | bytes]:
    """Encode the sizes of merged votes in the bit width that gives the fewest bytes.

    Returns the width, one number below 2^width for each vote, and the remainders. A vote whose size does not fit gets
    the highest number, and its remainder is stored separately.
    """
    smallest: list[int | bytes] = []
    for width in WIDTHS:
        highest, packed, large = (1 << width) - 1, [], [np.zeros(0, np.uint16)]
        for start in range(0, len(values), CHUNK):  # a whole number of bytes, except in the last part
            magnitude = np.abs(values[start : start + CHUNK].astype(np.int32))
            packed.append(pack_bits(np.minimum(magnitude - 1, highest).astype(np.int64), width))
            large.append((magnitude[magnitude > highest] - (highest + 1)).astype(np.uint16))
        found: list[int | bytes] = [width, compress(b"".join(packed)), compress(planes(np.concatenate(large)))]
        if not smallest or _length(found) < _length(smallest):
            smallest = found
    return smallest


def _length(fields: list[int | bytes]) -> int:
    return sum(len(field) for field in fields if isinstance(field, bytes))


def _decode_sizes(width: int, packed: bytes, large: bytes, count: int, largest: int) -> npt.NDArray[np.int16]:
    if width not in WIDTHS:
        raise PayloadError(f"the bit width of merged votes must be one of {', '.join(map(str, WIDTHS))}, not {width}")
    raw = decompress_exactly(packed, packed_bytes(count, width), 1, "bytes of merged votes")
    sizes, highest, done = np.empty(count, np.int16), (1 << width) - 1, 0
    parts = [slice(start, min(count, start + CHUNK)) for start in range(0, count, CHUNK)]
    for part in parts:  # each begins with a byte
        within = slice(part.start * width // 8, packed_bytes(part.stop, width))
        sizes[part] = unpack_bits(raw[within], part.stop - part.start, width)
    above = int(np.count_nonzero(sizes == highest))
    rest = decompress_exactly(large, above, 2, "large merged votes").reshape(2, above)
    for part in parts:
        size = sizes[part].astype(np.int32)
        is_large = size == highest
        first, done = done, done + int(np.count_nonzero(is_large))
        size[is_large] += from_planes(rest[:, first:done].reshape(-1))
        size += 1
        if size.max(initial=1) > largest:
            raise PayloadError(f"merged votes must lie between 1 and {largest} in magnitude")
        sizes[part] = size
    return sizes


def _encode_scales(scales: npt.NDArray[np.float32]) -> bytes:
    bits = scales.view(np.uint32)
    if (bits & 0xFFFF).any():
        raise ValueError("scales have eight significant bits")
    return compress(planes(bits >> 16))


def _decode_scales(packed: bytes, tiles: int) -> npt.NDArray[np.float32]:
    """Decode the scales of `tiles` tiles from the upper halves of their float32 bits."""
    upper = from_planes(decompress_exactly(packed, tiles, 2, "scales of tiles"))
    scales = (upper.astype(np.uint32) << 16).view(np.float32)
    if not ((scales >= SCALE_MIN) & (scales <= SCALE_MAX)).all():
        raise PayloadError(f"the scale of a tile must lie between {SCALE_MIN:.1e} and {SCALE_MAX:g}")
    return scales


def _described(what: str, magnitude: Magnitude) -> str:
    return f"{what} of version {VERSION} with demo.magnitude = {magnitude}"


def _float_bits(value: float) -> int:
    if to_float32(value) != value:
        raise ValueError(f"{value!r} is not a float32")
    return int(np.float32(value).view(np.uint32))


def _bits_float(bits: int) -> float:
    """The float32 with these bits; it must be +0 or normal, because machines treat other values differently."""
    if bits >> 32:
        raise PayloadError("a float32 has 32 bits")
    value = float(np.uint32(bits).view(np.float32))
    if abs(value) < np.finfo(np.float32).tiny and bits:
        raise PayloadError("learning rate and decay must be 0 or normal numbers")
    return value
