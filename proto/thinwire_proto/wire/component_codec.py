"""Component numbers to bytes and back, in one of two forms; the encoder uses the smaller.

`GAPS`: the number of skipped components before each one. Matrices and vectors are separate, since vectors are denser.
From about twenty components a tile, zstandard's entropy stage comes within 2% of the entropy. A gap g is written as
⌊g/255⌋ bytes of 255 and one byte g mod 255, so decoding is one cumulative sum.

`RANKS`: with few components a tile, gaps are redundant, because the reader knows the number k of components in each
tile; the fewer components, the larger the redundancy. Here the n components of a tile are one number: their rank among
all possible sets (the combinatorial number system: Σ C(cᵢ, i) for c₁ < c₂ < …). In a matrix tile the rank covers the
upper six bits (cᵢ = upper six bits + i − 1, as two components may share them). The lower six bits are close to uniform
and are written as they are. In a vector tile the rank covers the whole component. Ranks of several tiles are joined
into one number of up to 63 bits, so that little is lost to rounding up to whole bits. Tiles with equal n are stored
together and processed at once, which makes this form fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import comb, factorial, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.topk import update_bounds
from thinwire_proto.exact.votes import CHUNK, Components, counts_of
from thinwire_proto.wire.packing import (
    Bytes,
    Numbers,
    compress,
    compressed_max,
    decompress,
    decompress_exactly,
    pack_bits,
    packed_bytes,
    unpack_bits,
)

GAPS, RANKS = 0, 1
LOWER_BITS = 6
UPPER = MATRIX_COMPONENTS >> LOWER_BITS
MATRIX_RANKED_MAX = 20
"""Most components of a matrix tile whose rank fits: C(64 + 20 − 1, 20) is below 2⁶³."""
GAP_COST, GAP_TABLE_BITS = 1.02, 4
"""Bits that zstandard needs for one bit of entropy, and for each symbol of its table. Measured; used only to estimate.
"""
_ESCAPE = 255
_BITS_MAX = 63

FIELD_TYPES = (int, int, bytes, bytes)
"""Types of the result of `encode_components`: form, number of components, and two byte strings of the form."""

assert (
    comb(UPPER + MATRIX_RANKED_MAX - 1, MATRIX_RANKED_MAX)
    < 1 << _BITS_MAX
    <= comb(UPPER + MATRIX_RANKED_MAX, MATRIX_RANKED_MAX + 1)
)
assert comb(VECTOR_COMPONENTS, VECTOR_COMPONENTS // 2) < 1 << _BITS_MAX


def encoded_max(count: int, layout: TileLayout) -> int:
    """Upper bound on the bytes of the encoded fields of `count` components."""
    gaps = compressed_max(_gap_bytes_max(count, layout.components)) + compressed_max(1)
    ranks = compressed_max(layout.tiles) + layout.tiles * _BITS_MAX // 8 + count + 8 * _GROUPS_MAX
    return max(gaps, ranks)


def encode_components(components: Components, layout: TileLayout) -> list[int | bytes]:
    """Encode components, which are ascending and inside the tile space."""
    counts = counts_of(components, layout)
    groups = _groups(counts, layout)
    if groups is not None and 8 * sum(group.bytes for group in groups) <= _gap_bits(components):
        numbers = b"".join(_encode_group(components, group) for group in groups)
        return [RANKS, len(components), compress(counts.astype(np.uint8).tobytes()), numbers]
    split = int(np.searchsorted(components, layout.matrix_components))
    matrices, vectors = components[:split], components[split:] - layout.matrix_components
    return [GAPS, len(components), compress(_to_gaps(matrices)), compress(_to_gaps(vectors))]


def decode_components(
    form: int, count: int, head: bytes, body: bytes, layout: TileLayout, per_tile: int, count_max: int
) -> tuple[Components, npt.NDArray[np.int64]]:
    """Decode components, ascending, and their number in each tile, int64 [tiles].

    A tile has at most `per_tile` components (and at most its size); `count_max` limits the total. Raises PayloadError.
    """
    if count > count_max:
        raise PayloadError(f"there can be 0 to {count_max} components; the payload announces {count}")
    if form == GAPS:
        components = np.empty(count, np.int64)
        matrices = _from_gaps(head, count, layout.matrix_components, components)
        vectors = _from_gaps(body, count, layout.components - layout.matrix_components, components[matrices:])
        if matrices + vectors != count:
            raise PayloadError(f"the gaps do not give the {count} components that the payload announces")
        components[matrices:] += layout.matrix_components
        counts = counts_of(components, layout)
        _check_counts(counts, per_tile, layout)
        return components, counts
    if form != RANKS:
        raise PayloadError(f"components have form {GAPS} or {RANKS}; this has form {form}")
    counts = decompress_exactly(head, layout.tiles, 1, "counts of components").astype(np.int64)
    if int(counts.sum()) != count:
        raise PayloadError(f"the tiles hold {int(counts.sum())} components; the payload announces {count}")
    _check_counts(counts, per_tile, layout)
    groups = _groups(counts, layout)
    if groups is None:
        raise PayloadError(f"a matrix tile with more than {MATRIX_RANKED_MAX} components has no rank")
    return _decode_ranks(body, groups, count), counts


def _check_counts(counts: Numbers, per_tile: int, layout: TileLayout) -> None:
    bounds = update_bounds(layout, per_tile)
    if (counts > bounds).any():
        tile = int(np.argmax(counts > bounds))
        raise PayloadError(f"tile {tile} has {counts[tile]} votes; k allows {bounds[tile]}")


# gaps


def _gap_bytes_max(count: int, space: int) -> int:
    return count + space // _ESCAPE + 1


def _gap_bits(components: Components) -> float:
    """Estimate the size of the gaps in bits."""
    if not len(components):
        return 0.0
    counts = np.zeros(4 * MATRIX_COMPONENTS + 1, np.int64)
    for steps in _steps(components):
        upper = steps >> 2  # the last two bits of a gap are close to uniform
        counts += np.bincount(np.minimum(upper, 4 * MATRIX_COMPONENTS), minlength=len(counts))
    counts = counts[counts > 0]
    entropy = float(counts @ (np.log2(len(components)) - np.log2(counts))) + 2 * len(components)
    return GAP_COST * entropy + GAP_TABLE_BITS * len(counts)


def _to_gaps(components: Components) -> bytes:
    """Encode ascending components as gap bytes. The first gap counts from 0, each other from the component before."""
    parts = []
    for steps in _steps(components):
        escapes, rest = np.divmod(steps - 1, _ESCAPE)
        part = np.full(int(escapes.sum()) + len(steps), _ESCAPE, np.uint8)
        part[np.cumsum(escapes) + np.arange(len(steps))] = rest
        parts.append(part.tobytes())
    return b"".join(parts)


def _steps(components: Components) -> Iterator[Numbers]:
    """The distance of each component from the one before, a chunk at a time; the first counts from −1."""
    for start in range(0, len(components), CHUNK):
        part = components[start : start + CHUNK]
        yield np.diff(part, prepend=components[start - 1] if start else -1)


def _from_gaps(packed: bytes, count_max: int, space: int, out: Components) -> int:
    """Decode at most `count_max` components below `space` into `out`. Returns their number."""
    raw = decompress(packed, _gap_bytes_max(count_max, space))
    count = len(raw) - int(np.count_nonzero(raw == _ESCAPE))
    if count > len(out) or (len(raw) and raw[-1] == _ESCAPE):
        raise PayloadError(f"the gaps do not give the {count_max} components that the payload announces")
    done = total = 0
    for start in range(0, len(raw), CHUNK):
        part = raw[start : start + CHUNK]
        up_to = np.cumsum(part, dtype=np.int64)
        found = up_to[part != _ESCAPE]
        found += np.arange(total + done, total + done + len(found))
        out[done : done + len(found)] = found
        done, total = done + len(found), total + int(up_to[-1])
    if count and out[count - 1] >= space:
        raise PayloadError(f"component {out[count - 1]} is outside the space of {space}")
    return count


# ranks


class _Group(NamedTuple):
    """Tiles of one kind with `each` components a tile.

    starts and origins: for each tile, the index of its first component in the list, and of its first component in tile
    space. total: number of possible ranks. joined: so many ranks share one number of `width` bits.
    """

    each: int
    is_matrix: bool
    starts: Numbers  # [tiles]
    origins: Numbers  # [tiles]
    total: int
    joined: int
    width: int

    @property
    def number_bytes(self) -> int:
        return packed_bytes(-(-len(self.starts) // self.joined), self.width)

    @property
    def lower_bytes(self) -> int:
        return packed_bytes(len(self.starts) * self.each, LOWER_BITS) if self.is_matrix else 0

    @property
    def bytes(self) -> int:
        return self.number_bytes + self.lower_bytes


_GROUPS_MAX = MATRIX_RANKED_MAX + VECTOR_COMPONENTS


def _groups(counts: Numbers, layout: TileLayout) -> list[_Group] | None:
    """Groups in the order in which they are written; None if a tile has too many components for a rank."""
    if counts[: layout.matrix_tiles].max(initial=0) > MATRIX_RANKED_MAX:
        return None
    starts = np.cumsum(counts) - counts
    groups = []
    for is_matrix in (True, False):
        kind = slice(0, layout.matrix_tiles) if is_matrix else slice(layout.matrix_tiles, None)
        size = MATRIX_COMPONENTS if is_matrix else VECTOR_COMPONENTS
        first = 0 if is_matrix else layout.matrix_components
        for each in np.flatnonzero(np.bincount(counts[kind])).tolist():
            if each:
                tiles = np.flatnonzero(counts[kind] == each)
                total, joined, width = _number(each, is_matrix)
                groups.append(_Group(each, is_matrix, starts[kind][tiles], first + tiles * size, total, joined, width))
    return groups


@lru_cache(maxsize=2 * _GROUPS_MAX)
def _number(each: int, is_matrix: bool) -> tuple[int, int, int]:
    """For tiles with `each` components: number of possible ranks, how many ranks share a number, and its bit width."""
    total = comb(UPPER + each - 1, each) if is_matrix else comb(VECTOR_COMPONENTS, each)
    joined = 1
    while joined < 64 and total ** (joined + 1) < 1 << _BITS_MAX:
        joined += 1
    return total, joined, (total**joined - 1).bit_length()


@lru_cache(maxsize=1)
def _binomials() -> Numbers:
    """C(c, i), int64 [i, c], i and c from 0. Entries that do not fit are the largest int64; they are never read."""
    largest = (1 << _BITS_MAX) - 1
    rows = [[min(comb(c, i), largest) for c in range(2 * UPPER)] for i in range(VECTOR_COMPONENTS + 1)]
    return np.array(rows, np.int64)


def _encode_group(components: Components, group: _Group) -> bytes:
    table = _binomials()
    inside = np.empty((group.each, len(group.starts)), np.int64)
    ranks = np.zeros(-(-len(group.starts) // group.joined) * group.joined, np.int64)
    for i in range(group.each):
        inside[i] = components[group.starts + i] - group.origins
        upper = (inside[i] >> LOWER_BITS) + i if group.is_matrix else inside[i]
        ranks[: len(upper)] += table[i + 1][upper]
    joined = np.zeros(len(ranks) // group.joined, np.int64)
    for rank in ranks.reshape(-1, group.joined).T:
        joined = joined * group.total + rank
    lower = pack_bits(inside.reshape(-1) & ((1 << LOWER_BITS) - 1), LOWER_BITS) if group.is_matrix else b""
    return pack_bits(joined, group.width) + lower


def _decode_ranks(body: bytes, groups: list[_Group], count: int) -> Components:
    size = sum(group.bytes for group in groups)
    if len(body) != size:
        raise PayloadError(f"the ranks of these components take {size} bytes; there are {len(body)}")
    raw, start = np.frombuffer(body, np.uint8), 0
    components = np.empty(count, np.int64)
    for group in groups:
        end = start + group.bytes
        for i, inside in enumerate(_decode_group(raw[start:end], group)):
            components[group.starts + i] = inside + group.origins
        start = end
    return components


def _largest(binomials: Numbers, ranks: Numbers, i: int, limit: int) -> Numbers:
    """For each rank, the largest c below `limit` with C(c, i) ≤ rank. binomials: C(c, i), indexed by c.

    The first guess is C(c, i) ≈ (c − (i − 1)/2)ⁱ/i!, which is three times as fast as a table search. The loops then
    correct it, so the result does not depend on a machine's floating-point rounding.
    """
    guess = np.exp2((np.log2(np.maximum(ranks, 1)) + log2(factorial(i))) / i) + (i - 1) / 2
    found = np.clip(guess.astype(np.int64), i - 1, limit - 1)
    while (high := binomials[found] > ranks).any():
        found -= high
    while (low := (binomials[found + 1] <= ranks) & (found + 1 < limit)).any():
        found += low
    return found


def _decode_group(raw: Bytes, group: _Group) -> Numbers:
    """Decode one group: components relative to their tiles, ascending, int64 [each, tiles]."""
    tiles, each, table = len(group.starts), group.each, _binomials()
    joined = unpack_bits(raw[: group.number_bytes], -(-tiles // group.joined), group.width)
    ranks = np.empty((len(joined), group.joined), np.int64)
    for column in reversed(range(group.joined)):
        joined, ranks[:, column] = np.divmod(joined, group.total)
    rest = ranks.reshape(-1)[:tiles]
    if joined.any() or ranks.reshape(-1)[tiles:].any():
        raise PayloadError("the rank of a tile is too high")
    inside = np.empty((each, tiles), np.int64)
    limit = UPPER + each - 1 if group.is_matrix else VECTOR_COMPONENTS
    for i in reversed(range(each)):
        found = _largest(table[i + 1], rest, i + 1, limit)
        rest = rest - table[i + 1][found]
        inside[i] = found - i if group.is_matrix else found
    if not group.is_matrix:
        return inside
    inside <<= LOWER_BITS
    inside |= unpack_bits(raw[group.number_bytes :], tiles * each, LOWER_BITS).reshape(each, tiles)
    if (inside[1:] <= inside[:-1]).any():
        raise PayloadError("the components of a tile are not in ascending order")
    return inside
