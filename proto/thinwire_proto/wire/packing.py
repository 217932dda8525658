"""Numbers to bytes and back, for the payload codec: bit packing, zstandard frames, msgpack arrays.

Decoding is total: any input gives either numbers or a PayloadError. The caller's bounds limit the memory.
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
Values = npt.NDArray[np.int8]
ZSTD_LEVEL = 1
_DIGITS = zstandard.ZstdCompressionParameters.from_level(ZSTD_LEVEL, write_content_size=True, hash_log=6, min_match=7)
"""With a table of 64 entries it finds hardly any repetition: up to 17% fewer bytes of digits, and faster."""
EMPTY = bytes.fromhex("28b52ffd2000010000")
"""The frame of empty content."""
FIELDS_MAX = 16
_WORD = 64
_BYTE_DIVISORS = (1, 2, 4, 8)
_CHUNK = 1 << 16
"""Numbers whose bits are expanded at once. Bounds the extra memory."""


def pack_bits(numbers: Numbers, width: int) -> bytes:
    """Pack numbers below 2^width into `width` bits each, most significant bit first; zeros fill the last byte.

    width: 0 to 63. Widths that divide a byte, and width 6 (four numbers in three bytes), have a fast path.
    """
    if width == 0:
        return b""
    if width in _BYTE_DIVISORS:
        each = 8 // width
        columns = np.zeros((-(-len(numbers) // each), each), np.uint8)
        columns.reshape(-1)[: len(numbers)] = numbers
        filled = np.zeros(len(columns), np.uint8)
        for column in range(each):
            filled |= columns[:, column] << (8 - width * (column + 1))
        return filled.tobytes()
    if width == 6:
        four = np.zeros(-(-len(numbers) // 4) * 4, np.int64)
        four[: len(numbers)] = numbers
        joined = four[0::4] << 18 | four[1::4] << 12 | four[2::4] << 6 | four[3::4]
        three = np.stack([joined >> 16, joined >> 8, joined], axis=1).astype(np.uint8)
        return three.tobytes()[: packed_bytes(len(numbers), width)]
    parts = []
    for start in range(0, len(numbers), _CHUNK):
        part = numbers[start : start + _CHUNK]
        bits = np.unpackbits(part.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
        parts.append(np.packbits(bits[:, -width:]))  # a whole number of bytes, except in the last part
    return np.concatenate(parts).tobytes() if parts else b""


def packed_bytes(count: int, width: int) -> int:
    """Number of bytes that `count` numbers of `width` bits take."""
    return -(-count * width // 8)


def unpack_bits(packed: Bytes, count: int, width: int) -> Numbers:
    """The inverse of `pack_bits`. packed: exactly the bytes of `count` numbers.

    Raises PayloadError if the last byte is not filled with zeros.
    """
    if width == 0:
        return np.zeros(count, np.int64)
    if count * width % 8 and packed[-1] & (0xFF >> (count * width % 8)):
        raise PayloadError("there are bits after the last number")
    if width in _BYTE_DIVISORS:
        each = 8 // width
        columns = np.empty((len(packed), each), np.int64)
        for column in range(each):
            columns[:, column] = packed >> (8 - width * (column + 1)) & ((1 << width) - 1)
        return columns.reshape(-1)[:count]
    if width == 6:
        three = np.zeros((-(-count // 4), 3), np.int64)
        three.reshape(-1)[: len(packed)] = packed
        joined = three[:, 0] << 16 | three[:, 1] << 8 | three[:, 2]
        return np.stack([joined >> 18, joined >> 12, joined >> 6, joined], axis=1).reshape(-1)[:count] & 63
    out = np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        here = min(_CHUNK, count - start)
        first = start * width // 8  # _CHUNK is a multiple of 8
        bits = np.unpackbits(packed[first : first + packed_bytes(here, width)])[: here * width].reshape(here, width)
        words = np.zeros((here, _WORD), np.uint8)
        words[:, -width:] = bits
        out[start : start + here] = np.packbits(words, axis=1).view(">u8")[:, 0].astype(np.int64)
    return out


def pack_signs(positive: npt.NDArray[np.bool_]) -> bytes:
    """A bit for each, the first in the lowest bit of the first byte."""
    return np.packbits(positive, bitorder="little").tobytes()


def unpack_signs(signs: bytes, count: int) -> npt.NDArray[np.bool_]:
    """The inverse of `pack_signs`. Raises PayloadError."""
    if len(signs) != -(-count // 8):
        raise PayloadError(f"{count} signs need {-(-count // 8)} bytes; there are {len(signs)}")
    bits = np.unpackbits(np.frombuffer(signs, np.uint8), bitorder="little")
    if bits[count:].any():
        raise PayloadError("there are bits after the last sign")
    return bits[:count].view(np.bool_)


def planes(numbers: npt.NDArray[Any]) -> bytes:
    """16-bit numbers as all low bytes followed by all high bytes, which compresses better."""
    return b"".join(half.astype(np.uint8).tobytes() for half in (numbers & 0xFF, numbers >> 8))


def from_planes(raw: Bytes) -> npt.NDArray[np.int32]:
    """The inverse of `planes`."""
    count = len(raw) // 2
    return raw[:count].astype(np.int32) | (raw[count:].astype(np.int32) << 8)


def compress(data: bytes) -> bytes:
    """Compress to one zstandard frame whose header states the content size."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(data)


def compress_digits(data: bytes | memoryview) -> bytes:
    """`compress` for bytes that are independent of each other, where repetitions are chance and cost more than Huffman
    codes do."""
    return zstandard.ZstdCompressor(compression_params=_DIGITS).compress(data)


def compressed_max(size: int) -> int:
    """Upper bound on the compressed size of incompressible bytes (zstandard's ZSTD_COMPRESSBOUND)."""
    return size + (size >> 8) + 64


def decompress(data: bytes, size_max: int) -> Bytes:
    """Decompress exactly one zstandard frame that states its size, of at most `size_max` bytes. Raises PayloadError."""
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size > size_max:  # a frame without a stated size reads as 2⁶⁴ − 1
            raise PayloadError(f"a part must state its size, at most {size_max} bytes; it states {frame.content_size}")
        if frame.content_size == 0 and data != EMPTY:  # python-zstandard reads only the header of these
            raise PayloadError(f"an empty part must be {EMPTY.hex()}; this one has {len(data)} bytes")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=size_max, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PayloadError(f"a part cannot be decompressed: {error}") from None
    return np.frombuffer(raw, np.uint8)


def decompress_exactly(data: bytes, count: int, width: int, what: str) -> Bytes:
    """Decompress a frame that holds `count` items of `width` bytes. `what` names the items. Raises PayloadError."""
    found = decompress(data, width * count)
    if len(found) != width * count:
        raise PayloadError(f"{count} {what} need {width * count} bytes; there are {len(found)}")
    return found


def pack_array(fields: list[Any]) -> bytes:
    return bytes(msgpack.packb(fields, use_bin_type=True))


def unpack_array(data: bytes, what: str, version: int) -> list[Any]:
    """The fields after the version. Raises PayloadError unless this is one array without nested arrays."""
    found = 0

    def refuse_nested(fields: list[Any]) -> list[Any]:
        nonlocal found
        found += 1
        if found > 1:  # one byte can be an empty array, which takes sixty bytes of memory
            raise ValueError("an array inside an array")
        return fields

    try:
        fields = msgpack.unpackb(
            data,
            raw=False,
            list_hook=refuse_nested,
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
    """Raise PayloadError unless the fields have exactly these types, and integers are 0 or more and below 2⁶³."""
    numbers = [field for field in fields if type(field) is int]
    if [type(field) for field in fields] != list(types) or any(not 0 <= number < 1 << 63 for number in numbers):
        raise PayloadError(f"the fields of this {what} have the wrong types or number")
