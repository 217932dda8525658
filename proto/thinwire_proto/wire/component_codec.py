"""Components to bytes and back: which of a tile space's places are meant. Two forms, and the writer takes the smaller.

`GAPS`: the number of components skipped before each, those of matrices and those of vectors by themselves, since
vectors are fuller. zstandard's entropy stage comes within 2% of the floor from about twenty components a tile on. A gap
g is ⌊g/255⌋ bytes of 255 and then one byte g mod 255, so the reader is one cumulative sum.

`PLACES`: where tiles hold few components, gaps say too much: that a tile holds just k of them is known, and the fewer
there are, the more of each gap says it again. So here a tile's n components are one number, their place among all that
they could be (the combinatorial number system: Σ C(cᵢ, i) for c₁ < c₂ < …). In a matrix tile that is the place of their
upper six bits (cᵢ = upper six bits + i − 1, as two may share them), and the lower six go as they are, which are close
to uniform. In a vector tile it is the place of the components themselves. The numbers of several tiles are joined to
one as far as 63 bits go, so that little is lost to whole bits. Tiles of equal n go side by side, which is what makes it
fast: everything is done to all of them at once.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, factorial, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Components, counts_of
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

GAPS, PLACES = 0, 1
LOWER_BITS = 6
UPPER = MATRIX_COMPONENTS >> LOWER_BITS
MATRIX_PLACES_MAX = 20
"""Most components of a matrix tile that still have one number: C(64 + 20 − 1, 20) is below 2⁶³."""
GAP_COST, GAP_TABLE_BITS = 1.02, 4
"""What zstandard takes for a bit of entropy, and for each symbol of its table; measured, and only to foretell."""
_ESCAPE = 255
_BITS_MAX = 63

FIELDS = (int, int, bytes, bytes)
"""Types of what `encode_components` returns: form, number of components, and what the form needs."""

assert (
    comb(UPPER + MATRIX_PLACES_MAX - 1, MATRIX_PLACES_MAX)
    < 1 << _BITS_MAX
    <= comb(UPPER + MATRIX_PLACES_MAX, MATRIX_PLACES_MAX + 1)
)
assert comb(VECTOR_COMPONENTS, VECTOR_COMPONENTS // 2) < 1 << _BITS_MAX


def encoded_max(count: int, layout: TileLayout) -> int:
    """The fields of so many components have no more bytes than this."""
    gaps = compressed_max(_gap_bytes_max(count, layout.components)) + compressed_max(1)
    places = compressed_max(layout.tiles) + layout.tiles * _BITS_MAX // 8 + count + 8 * _GROUPS_MAX
    return max(gaps, places)


def encode_components(components: Components, layout: TileLayout) -> list[int | bytes]:
    """components: ascending, inside the tile space."""
    counts = counts_of(components, layout)
    groups = _groups(counts, layout)
    if groups is not None and 8 * sum(group.bytes for group in groups) <= _gap_bits(components):
        numbers = b"".join(_encode_group(components, group) for group in groups)
        return [PLACES, len(components), compress(counts.astype(np.uint8).tobytes()), numbers]
    split = int(np.searchsorted(components, layout.matrix_components))
    matrices, vectors = components[:split], components[split:] - layout.matrix_components
    return [GAPS, len(components), compress(_to_gaps(matrices)), compress(_to_gaps(vectors))]


def decode_components(
    form: int, count: int, head: bytes, body: bytes, layout: TileLayout, per_tile: int, count_max: int
) -> tuple[Components, npt.NDArray[np.int64]]:
    """Components, ascending, and how many are in each tile, [tiles]: at most `per_tile` (and what a tile has), and
    `count_max` in all. Raises PayloadError."""
    if count > count_max:
        raise PayloadError(f"there can be 0 to {count_max} components; the payload announces {count}")
    if form == GAPS:
        matrices = _from_gaps(head, count, layout.matrix_components)
        vectors = _from_gaps(body, count, layout.components - layout.matrix_components)
        if len(matrices) + len(vectors) != count:
            raise PayloadError(f"the gaps do not make up the {count} components that the payload announces")
        components = np.concatenate([matrices, vectors + layout.matrix_components])
        counts = counts_of(components, layout)
        _check_counts(counts, per_tile, layout)
        return components, counts
    if form != PLACES:
        raise PayloadError(f"components have form {GAPS} or {PLACES}; this has form {form}")
    counts = decompress_exactly(head, layout.tiles, 1, "counts of components").astype(np.int64)
    if int(counts.sum()) != count:
        raise PayloadError(f"the tiles hold {int(counts.sum())} components; the payload announces {count}")
    _check_counts(counts, per_tile, layout)
    groups = _groups(counts, layout)
    if groups is None:
        raise PayloadError(f"a matrix tile of more than {MATRIX_PLACES_MAX} components has no number")
    return _decode_places(body, groups, count), counts


def _check_counts(counts: Numbers, per_tile: int, layout: TileLayout) -> None:
    for first, part, size in (
        (0, counts[: layout.matrix_tiles], MATRIX_COMPONENTS),
        (layout.matrix_tiles, counts[layout.matrix_tiles :], VECTOR_COMPONENTS),
    ):
        if len(part) and part.max() > min(per_tile, size):
            tile = int(np.argmax(part > min(per_tile, size)))
            raise PayloadError(f"tile {first + tile} has {part[tile]} votes; k allows {min(per_tile, size)}")


# gaps


def _gap_bytes_max(count: int, space: int) -> int:
    return count + space // _ESCAPE + 1


def _gap_bits(components: Components) -> float:
    """About how many bits the gaps will take."""
    if not len(components):
        return 0.0
    upper = np.diff(components, prepend=-1) >> 2  # gaps vary too smoothly for their last bits to be foretold
    counts = np.bincount(np.minimum(upper, 4 * MATRIX_COMPONENTS))
    counts = counts[counts > 0]
    entropy = float(counts @ (np.log2(len(components)) - np.log2(counts))) + 2 * len(components)
    return GAP_COST * entropy + GAP_TABLE_BITS * len(counts)


def _to_gaps(components: Components) -> bytes:
    """Ascending components to gap bytes; the first gap counts from 0, the others from behind the component before."""
    gaps = np.diff(components, prepend=-1) - 1
    escapes, rest = np.divmod(gaps, _ESCAPE)
    out = np.full(int(escapes.sum()) + len(gaps), _ESCAPE, np.uint8)
    out[np.cumsum(escapes) + np.arange(len(gaps))] = rest
    return out.tobytes()


def _from_gaps(packed: bytes, count_max: int, space: int) -> Components:
    """Components below `space`, `count_max` at most."""
    raw = decompress(packed, _gap_bytes_max(count_max, space))
    ends = raw != _ESCAPE
    count = int(np.count_nonzero(ends))
    if count > count_max or (len(raw) and not ends[-1]):
        raise PayloadError(f"the gaps do not make up the {count_max} components that the payload announces")
    components: Components = np.cumsum(raw, dtype=np.int64)[ends] + np.arange(count)
    if count and components[-1] >= space:
        raise PayloadError(f"component {components[-1]} is beyond the space of {space}")
    return components


# places


class _Group(NamedTuple):
    """Tiles of one kind that hold `each` components, and where the first component of each stands in the list and in
    tile space. joined: so many tiles have one number of `width` bits."""

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


_GROUPS_MAX = MATRIX_PLACES_MAX + VECTOR_COMPONENTS


def _groups(counts: Numbers, layout: TileLayout) -> list[_Group] | None:
    """In the order in which they are written; None where a tile has more components than there are numbers for."""
    if counts[: layout.matrix_tiles].max(initial=0) > MATRIX_PLACES_MAX:
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
    """Of a tile that holds `each` components: how many numbers there are, of how many tiles one is made, and its
    bits."""
    total = comb(UPPER + each - 1, each) if is_matrix else comb(VECTOR_COMPONENTS, each)
    joined = 1
    while joined < 64 and total ** (joined + 1) < 1 << _BITS_MAX:
        joined += 1
    return total, joined, (total**joined - 1).bit_length()


@lru_cache(maxsize=1)
def _binomials() -> Numbers:
    """C(c, i), int64 [i, c], i and c from 0; what does not fit is the largest int64, and is never asked for."""
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


def _decode_places(body: bytes, groups: list[_Group], count: int) -> Components:
    size = sum(group.bytes for group in groups)
    if len(body) != size:
        raise PayloadError(f"the places of these components take {size} bytes; there are {len(body)}")
    raw, at = np.frombuffer(body, np.uint8), 0
    components = np.empty(count, np.int64)
    for group in groups:
        end = at + group.bytes
        for i, inside in enumerate(_decode_group(raw[at:end], group)):
            components[group.starts + i] = inside + group.origins
        at = end
    return components


def _largest(binomials: Numbers, ranks: Numbers, i: int, places: int) -> Numbers:
    """The largest c below `places` with C(c, i) ≤ rank, of each: guessed by C(c, i) ≈ (c − (i − 1)/2)ⁱ/i!, three times
    as fast as looking it up, and then mended until it is right, so that nothing hangs on how a machine's floats come
    out. binomials: C(c, i) by c."""
    guess = np.exp2((np.log2(np.maximum(ranks, 1)) + log2(factorial(i))) / i) + (i - 1) / 2
    found = np.clip(guess.astype(np.int64), i - 1, places - 1)
    while (high := binomials[found] > ranks).any():
        found -= high
    while (low := (binomials[found + 1] <= ranks) & (found + 1 < places)).any():
        found += low
    return found


def _decode_group(raw: Bytes, group: _Group) -> Numbers:
    """Places inside their tiles, ascending, int64 [each, tiles]."""
    tiles, each, table = len(group.starts), group.each, _binomials()
    joined = unpack_bits(raw[: group.number_bytes], -(-tiles // group.joined), group.width)
    ranks = np.empty((len(joined), group.joined), np.int64)
    for place in reversed(range(group.joined)):
        joined, ranks[:, place] = np.divmod(joined, group.total)
    rest = ranks.reshape(-1)[:tiles]
    if joined.any() or ranks.reshape(-1)[tiles:].any():
        raise PayloadError("there is no tile with a number so high")
    inside = np.empty((each, tiles), np.int64)
    places = UPPER + each - 1 if group.is_matrix else VECTOR_COMPONENTS
    for i in reversed(range(each)):
        found = _largest(table[i + 1], rest, i + 1, places)
        rest = rest - table[i + 1][found]
        inside[i] = found - i if group.is_matrix else found
    if not group.is_matrix:
        return inside
    inside <<= LOWER_BITS
    inside |= unpack_bits(raw[group.number_bytes :], tiles * each, LOWER_BITS).reshape(each, tiles)
    if (inside[1:] <= inside[:-1]).any():
        raise PayloadError("the components of a tile do not ascend")
    return inside
