"""Numbers to bytes and back, for the payload codec: bits side by side, zstandard frames, msgpack arrays.

Reading is total: whatever the bytes are, the result is numbers or a PayloadError, and memory is bounded by what the
caller says that there can be.
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import zstandard

from thinwire_proto.errors import PayloadError

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
ZSTD_LEVEL = 1
EMPTY = bytes.fromhex("28b52ffd2000010000")
"""The frame of nothing."""
FIELDS_MAX = 16
_WORD = 64
_IN_A_BYTE = (1, 2, 4, 8)
_AT_A_TIME = 1 << 16
"""Numbers whose bits are spread out at once: bounds the extra memory."""


def pack_bits(numbers: Numbers, width: int) -> bytes:
    """`numbers`, 0 or more and below 2^width, in so many bits each, most significant first; zeros fill the last byte.
    width: 0 to 63. Those that share bytes or fill three are done without taking bits apart."""
    if width == 0:
        return b""
    if width in _IN_A_BYTE:
        each = 8 // width
        columns = np.zeros((-(-len(numbers) // each), each), np.uint8)
        columns.reshape(-1)[: len(numbers)] = numbers
        filled = np.zeros(len(columns), np.uint8)
        for place in range(each):
            filled |= columns[:, place] << (8 - width * (place + 1))
        return filled.tobytes()
    if width == 6:
        four = np.zeros(-(-len(numbers) // 4) * 4, np.int64)
        four[: len(numbers)] = numbers
        joined = four[0::4] << 18 | four[1::4] << 12 | four[2::4] << 6 | four[3::4]
        three = np.stack([joined >> 16, joined >> 8, joined], axis=1).astype(np.uint8)
        return three.tobytes()[: packed_bytes(len(numbers), width)]
    parts = []
    for start in range(0, len(numbers), _AT_A_TIME):
        part = numbers[start : start + _AT_A_TIME]
        bits = np.unpackbits(part.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
        parts.append(np.packbits(bits[:, -width:]))  # a whole number of bytes, but for the last part
    return np.concatenate(parts).tobytes() if parts else b""


def packed_bytes(count: int, width: int) -> int:
    """How many bytes `count` numbers of `width` bits take."""
    return -(-count * width // 8)


def unpack_bits(packed: Bytes, count: int, width: int) -> Numbers:
    """The reverse of `pack_bits`. packed: just the bytes that `count` numbers take. Raises PayloadError if the last
    byte is not filled with zeros."""
    if width == 0:
        return np.zeros(count, np.int64)
    if count * width % 8 and packed[-1] & (0xFF >> (count * width % 8)):
        raise PayloadError("there are bits beyond the last number")
    if width in _IN_A_BYTE:
        each = 8 // width
        columns = np.empty((len(packed), each), np.int64)
        for place in range(each):
            columns[:, place] = packed >> (8 - width * (place + 1)) & ((1 << width) - 1)
        return columns.reshape(-1)[:count]
    if width == 6:
        three = np.zeros((-(-count // 4), 3), np.int64)
        three.reshape(-1)[: len(packed)] = packed
        joined = three[:, 0] << 16 | three[:, 1] << 8 | three[:, 2]
        return np.stack([joined >> 18, joined >> 12, joined >> 6, joined], axis=1).reshape(-1)[:count] & 63
    out = np.empty(count, np.int64)
    for start in range(0, count, _AT_A_TIME):
        here = min(_AT_A_TIME, count - start)
        first = start * width // 8  # _AT_A_TIME is a multiple of 8
        bits = np.unpackbits(packed[first : first + packed_bytes(here, width)])[: here * width].reshape(here, width)
        words = np.zeros((here, _WORD), np.uint8)
        words[:, -width:] = bits
        out[start : start + here] = np.packbits(words, axis=1).view(">u8")[:, 0].astype(np.int64)
    return out


def planes(numbers: npt.NDArray[Any]) -> bytes:
    """16-bit numbers as all their low bytes and then all their high bytes, which compresses better."""
    return np.concatenate([numbers & 0xFF, numbers >> 8]).astype(np.uint8).tobytes()


def from_planes(raw: Bytes) -> npt.NDArray[np.int32]:
    """The reverse of `planes`."""
    count = len(raw) // 2
    return raw[:count].astype(np.int32) | (raw[count:].astype(np.int32) << 8)


def compress(data: bytes) -> bytes:
    """One zstandard frame that says its size."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(data)


def compressed_max(size: int) -> int:
    """At least what incompressible bytes become (zstandard's ZSTD_COMPRESSBOUND)."""
    return size + (size >> 8) + 64


def decompress(data: bytes, size_max: int) -> Bytes:
    """One zstandard frame that says its size, of at most `size_max` bytes, and nothing behind it. Raises
    PayloadError."""
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size > size_max:  # also when the frame does not say: that reads as 2⁶⁴ − 1
            raise PayloadError(f"a part must say its size, and be at most {size_max} bytes; it is {frame.content_size}")
        if frame.content_size == 0 and data != EMPTY:  # python-zstandard looks no further than the head of these
            raise PayloadError(f"a part without content is {EMPTY.hex()}; this is {len(data)} bytes")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=size_max, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PayloadError(f"a part does not decompress: {error}") from None
    return np.frombuffer(raw, np.uint8)


def decompress_exactly(data: bytes, count: int, width: int, what: str) -> Bytes:
    """The `width` bytes of each of `count` things, out of a frame. Raises PayloadError."""
    found = decompress(data, width * count)
    if len(found) != width * count:
        raise PayloadError(f"{count} {what} need {width * count} bytes; there are {len(found)}")
    return found


def pack_array(fields: list[Any]) -> bytes:
    return bytes(msgpack.packb(fields, use_bin_type=True))


def unpack_array(data: bytes, what: str, version: int) -> list[Any]:
    """The fields behind the version. Raises PayloadError if this is not one array, without arrays inside."""
    found = 0

    def one_alone(fields: list[Any]) -> list[Any]:
        nonlocal found
        found += 1
        if found > 1:  # a byte that is an empty array would take sixty of memory
            raise ValueError("an array inside an array")
        return fields

    try:
        fields = msgpack.unpackb(
            data,
            raw=False,
            list_hook=one_alone,
            max_array_len=FIELDS_MAX,
            max_bin_len=len(data),
            max_str_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise PayloadError(f"this is not a {what}: {error or type(error).__name__}") from None
    if not isinstance(fields, list) or not fields or fields[0] != version or type(fields[0]) is not int:
        raise PayloadError(f"this is not a {what} of version {version}")
    return fields[1:]


def check_types(fields: list[Any], types: tuple[type, ...], what: str) -> None:
    """Raises PayloadError unless the fields are so many of these types, and integers 0 or more and below 2⁶³."""
    numbers = [field for field in fields if type(field) is int]
    if [type(field) for field in fields] != list(types) or any(not 0 <= number < 1 << 63 for number in numbers):
        raise PayloadError(f"the fields of this {what} have other types than they should, or there are more or fewer")
