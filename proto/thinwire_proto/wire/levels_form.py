"""An update in a few levels: the digits of all components of each tile that steps, for `demo.update_levels`.

The sum of many nodes' votes is nonzero at most components. Listing those that are not, with a sign and a size for each,
takes 4.5 bits a component for sixteen nodes that send everything, and their entropy in seven levels is 1.9. So a
component is a digit, one byte holds as many digits as fit, and zstandard's Huffman codes, which spend whole bits on a
byte, come within a few per cent of the entropy.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from thinwire_proto.errors import PayloadError
from thinwire_proto.wire.packing import Bytes, Values, compress_digits, decompress_exactly

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
