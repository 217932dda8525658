"""The payload codec: votes to bytes and back, updates to bytes and back.

Components go as gaps, in the manner of a run length: a gap g is ⌊g/255⌋ bytes of 255 and then one byte g mod 255, all
of it through zstandard, whose entropy stage comes close to the floor because gaps are nearly geometric. The decoder is
one cumulative sum; a component that repeats cannot be written at all. Everything else that is wrong (truncated, too
long, too many components in a tile, …) raises PayloadError, before memory is taken beyond what the contract bounds.

Where the contract has magnitudes, a contribution carries a code a tile beside that, and an update a scale a tile; each
kind is refused where the contract has the other.

Layouts (msgpack arrays, `VERSION` first) are in docs/wire.md. A change of them is a change of the version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import zstandard

from thinwire_proto.contract import WEIGHT_SUM_MAX, Magnitude
from thinwire_proto.decode import VOTE_MAX
from thinwire_proto.errors import PayloadError
from thinwire_proto.magnitudes import SCALE_MAX, SCALE_MIN, tiles_with
from thinwire_proto.schedule import to_float32
from thinwire_proto.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.votes import Components, Merged, Votes

VERSION = 1
ZSTD_LEVEL = 1
ENVELOPE_BYTES_MAX = 128  # msgpack heads, frame heads, numbers
_ESCAPE = 255

"""As in `DemoSpec.magnitude`."""


@dataclass(frozen=True)
class Update:
    """The update that leads from θ_step to θ_{step+1}: θ ← θ·decay, then θ ← θ − learning_rate·sign(X). With
    magnitudes, θ ← θ − S·X in place of that, S the tile's scale; the learning rate then only says what the nodes had.
    """

    step: int
    learning_rate: float  # a float32
    decay: float  # a float32
    merged: Merged


def contribution_bytes_max(layout: TileLayout, k: int, magnitude: Magnitude = "sign") -> int:
    """No contribution of the contract is longer than this."""
    kept = layout.kept_max(k)
    codes = _compressed_max(layout.tiles) if magnitude == "tile" else 0
    return _compressed_max(_gap_bytes_max(kept, layout)) + kept // 8 + 1 + codes + ENVELOPE_BYTES_MAX


def update_bytes_max(layout: TileLayout, magnitude: Magnitude = "sign") -> int:
    """No update of the contract is longer than this."""
    gaps = _gap_bytes_max(layout.components, layout)
    values = _compressed_max(2 * layout.components)
    if magnitude == "tile":
        values = _compressed_max(layout.components) + _compressed_max(2 * layout.tiles)
    return _compressed_max(gaps) + values + ENVELOPE_BYTES_MAX


def encode_votes(votes: Votes) -> bytes:
    signs = np.packbits(votes.positive, bitorder="little").tobytes()
    fields = [VERSION, len(votes), _compress(_to_gaps(votes.components)), signs]
    return _pack(fields if votes.codes is None else [*fields, _compress(votes.codes.tobytes())])


def decode_votes(data: bytes, layout: TileLayout, k: int, magnitude: Magnitude = "sign") -> Votes:
    """Votes with at most k components a tile, with a code for each tile that has some if the contract has magnitudes.
    Raises PayloadError."""
    size_max = contribution_bytes_max(layout, k, magnitude)
    if len(data) > size_max:
        raise PayloadError(f"a contribution has at most {size_max} bytes; this has {len(data)}")
    types = (int, bytes, bytes) + ((bytes,) if magnitude == "tile" else ())
    count, gaps, signs, *more = _unpack(data, "contribution", types, magnitude)
    components = _from_gaps(gaps, count, layout.kept_max(k), layout)
    if len(signs) != -(-count // 8):
        raise PayloadError(f"{count} votes need {-(-count // 8)} bytes of signs; there are {len(signs)}")
    bits = np.unpackbits(np.frombuffer(signs, np.uint8), bitorder="little")
    if bits[count:].any():
        raise PayloadError("there are sign bits beyond the last vote")
    in_tile = np.bincount(layout.tile_of(components), minlength=layout.tiles)
    bound = np.full(layout.tiles, min(k, MATRIX_COMPONENTS))
    bound[layout.matrix_tiles :] = min(k, VECTOR_COMPONENTS)
    if (in_tile > bound).any():
        tile = int(np.argmax(in_tile > bound))
        raise PayloadError(f"tile {tile} has {in_tile[tile]} votes; k allows {bound[tile]}")
    codes = _bytes_of(more[0], int(np.count_nonzero(in_tile)), 1, "codes of tiles") if more else None
    return Votes(components, bits[:count].astype(bool), codes)


def encode_update(update: Update) -> bytes:
    merged = update.merged
    values = merged.values.astype(np.int32)
    zigzag = ((values << 1) ^ (values >> 31)).astype(np.uint16)
    rates = (_float_bits(update.learning_rate), _float_bits(update.decay))
    head = [VERSION, update.step, *rates, len(merged), _compress(_to_gaps(merged.components))]
    if merged.scales is None:
        return _pack([*head, _compress(_planes(zigzag))])
    bits = merged.scales.view(np.uint32)
    if (bits & 0xFFFF).any() or (zigzag > 0xFF).any():
        raise ValueError("with magnitudes, values are int8 and scales have eight significant bits")
    return _pack([*head, _compress(zigzag.astype(np.uint8).tobytes()), _compress(_planes(bits >> 16))])


def decode_update(data: bytes, layout: TileLayout, magnitude: Magnitude = "sign") -> Update:
    """Raises PayloadError."""
    if len(data) > update_bytes_max(layout, magnitude):
        raise PayloadError(f"an update has at most {update_bytes_max(layout, magnitude)} bytes; this has {len(data)}")
    types = (int, int, int, int, bytes, bytes) + ((bytes,) if magnitude == "tile" else ())
    step, rate_bits, decay_bits, count, gaps, packed, *more = _unpack(data, "update", types, magnitude)
    components = _from_gaps(gaps, count, layout.components, layout)
    width, largest = (1, VOTE_MAX) if more else (2, WEIGHT_SUM_MAX)
    zigzag = _from_planes(_bytes_of(packed, count, width, "merged votes"), count)
    values = (zigzag >> 1) ^ -(zigzag & 1)
    if (values == 0).any() or (np.abs(values) > largest).any():
        raise PayloadError(f"merged votes must lie between 1 and {largest} in magnitude")
    rate, decay = _bits_float(rate_bits), _bits_float(decay_bits)
    if not (0 <= rate <= 1 and 0 <= decay <= 1):
        raise PayloadError(f"learning rate and decay must lie between 0 and 1; they are {rate} and {decay}")
    scales = _scales(more[0], len(tiles_with(components, layout)[0])) if more else None
    return Update(step, rate, decay, Merged(components, values.astype(np.int16), scales))


def _scales(packed: bytes, tiles: int) -> npt.NDArray[np.float32]:
    """The scales of so many tiles, from the upper halves of their float32."""
    upper = _from_planes(_bytes_of(packed, tiles, 2, "scales of tiles"), tiles)
    scales = (upper.astype(np.uint32) << 16).view(np.float32)
    if not ((scales >= SCALE_MIN) & (scales <= SCALE_MAX)).all():
        raise PayloadError(f"the scale of a tile must lie between {SCALE_MIN:.1e} and {SCALE_MAX:g}")
    return scales


def _planes(numbers: npt.NDArray[Any]) -> bytes:
    """16-bit numbers as all their low bytes and then all their high bytes, which compresses better."""
    return np.concatenate([numbers & 0xFF, numbers >> 8]).astype(np.uint8).tobytes()


def _from_planes(planes: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.int32]:
    """`count` numbers from their planes, of which there are one or two."""
    numbers = planes[:count].astype(np.int32)
    return numbers | (planes[count:].astype(np.int32) << 8) if len(planes) > count else numbers


def _bytes_of(packed: bytes, count: int, width: int, what: str) -> npt.NDArray[np.uint8]:
    """The `width` bytes of each of `count` things, out of a frame."""
    found = np.frombuffer(_decompress(packed, width * count), np.uint8)
    if len(found) != width * count:
        raise PayloadError(f"{count} {what} need {width * count} bytes; there are {len(found)}")
    return found


def _gap_bytes_max(count: int, layout: TileLayout) -> int:
    return count + layout.components // _ESCAPE + 1


def _compressed_max(size: int) -> int:
    """zstandard's own bound on what incompressible bytes become (ZSTD_COMPRESSBOUND)."""
    return size + (size >> 8) + 64


def _to_gaps(components: Components) -> bytes:
    """Ascending components to gap bytes; the first gap counts from 0, the others from behind the component before."""
    gaps = np.diff(components, prepend=-1) - 1
    escapes, rest = np.divmod(gaps, _ESCAPE)
    out = np.full(int(escapes.sum()) + len(gaps), _ESCAPE, np.uint8)
    out[np.cumsum(escapes) + np.arange(len(gaps))] = rest
    return out.tobytes()


def _from_gaps(packed: bytes, count: int, count_max: int, layout: TileLayout) -> Components:
    if not 0 <= count <= count_max:
        raise PayloadError(f"there can be 0 to {count_max} components; the payload announces {count}")
    raw = np.frombuffer(_decompress(packed, _gap_bytes_max(count, layout)), np.uint8)
    ends = raw != _ESCAPE
    if int(np.count_nonzero(ends)) != count or (len(raw) and not ends[-1]):
        raise PayloadError(f"the gaps do not make up the {count} components that the payload announces")
    components: Components = np.cumsum(raw, dtype=np.int64)[ends] + np.arange(count)
    if count and components[-1] >= layout.components:
        raise PayloadError(f"component {components[-1]} is beyond the tile space of {layout.components}")
    return components


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(data)


def _decompress(data: bytes, size_max: int) -> bytes:
    """One zstandard frame that says its size, of at most `size_max` bytes, and nothing behind it."""
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size > size_max:  # also when the frame does not say: that reads as 2⁶⁴ − 1
            raise PayloadError(f"a part must say its size, and be at most {size_max} bytes; it is {frame.content_size}")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_max, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PayloadError(f"a part does not decompress: {error}") from None


def _pack(fields: list[Any]) -> bytes:
    return bytes(msgpack.packb(fields, use_bin_type=True))


def _unpack(data: bytes, what: str, types: tuple[type, ...], magnitude: Magnitude) -> list[Any]:
    """The fields behind the version, checked by type; integers are 0 or more."""
    try:
        fields = msgpack.unpackb(
            data, raw=False, max_array_len=8, max_bin_len=len(data), max_str_len=0, max_map_len=0, max_ext_len=0
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise PayloadError(f"this is not a {what}: {error or type(error).__name__}") from None
    if not isinstance(fields, list) or not fields or fields[0] != VERSION:
        raise PayloadError(f"this is not a {what} of version {VERSION}")
    body = fields[1:]
    if [type(field) for field in body] != list(types) or any(type(field) is int and field < 0 for field in body):
        raise PayloadError(
            f"the fields of this {what} have other types than version {VERSION} has with demo.magnitude = {magnitude}"
        )
    return body


def _float_bits(value: float) -> int:
    if to_float32(value) != value:
        raise ValueError(f"{value!r} is not a float32")
    return int(np.float32(value).view(np.uint32))


def _bits_float(bits: int) -> float:
    if bits >> 32:
        raise PayloadError("a float32 has 32 bits")
    return float(np.uint32(bits).view(np.float32))
