"""A fused Triton kernel (CUDA and ROCm) for everything that the compressor does to a 64×64 tile.

The problem: executed operation by operation, each tile crosses the card's memory a dozen times (gradient, second
moment, two products of the transform, magnitudes, top-k, subtraction). The intermediate results are not needed.

The sketch: one program for each tile. It reads the gradient in the parameter's own shape, and the momentum's
coefficients (see `compress`: the transform is linear, so the coefficients are what is stored). The rest happens in
registers and shared memory, and the program writes the coefficients back:

    v ← β₂·v + (1 − β₂)·g²             with preconditioning
    X = P(g)·bᵀ, Cᵀ ← β·Cᵀ + η·Xᵀ·bᵀ    so that C ← β·C + η·b·P(g)·bᵀ
    T = the k-th largest |C|           by bisection on the bits
    C ← C − a·sign(C)                  where C is selected; a is the mean of their magnitudes, or the value of its code
    out: for each component a bit that says whether it is selected, and one for its sign; their number, and a

The memory traffic is 12 bytes a parameter, 20 with preconditioning, and a quarter of a byte for the bits. A second,
small kernel lists the components from the bits. In the first one, a component's place in the list would need a running
count over the tile. That crosses the program's threads several times, and took a third of its time.

Transposes. In a TF32 product, the matrix unit needs the right factor with its inner index contiguous. Written as above,
that factor is always the basis, a constant, and the coefficients come out as Cᵀ. So the kernel reads and writes tiles
transposed, and positions are in transposed order.

The threshold. The bits of nonnegative floats, read as integers, have the same order as the floats. After some rounds of
residual accumulation, the selected components of a tile are close together. So the search first takes growing steps
down from the largest value, and bisects once it is below the threshold. It ends as soon as exactly k values are above,
usually after a dozen counts. It also ends when one value remains, if several components have the same magnitude; ties
go to the lowest positions.
"""

from __future__ import annotations

import triton
import triton.language as tl

FIELDS = 6
"""Columns of the tensor table, int64.

They are the addresses of gradient and second moment, rows, columns, first tile, and number of tiles side by side.
"""
MASK_COMPONENTS = 16
"""Components in a number of `masks`."""


@triton.jit
def threshold(bits: tl.tensor, k: tl.tensor) -> tl.tensor:
    """(strict, low, left): of `bits`, int32 [64, 64], select all ≥ strict, and the first `left` that equal `low`.

    These are the k largest, without zeros."""
    low = 0
    found = 4096
    high = tl.max(bits) + 1
    above = 0
    step = 1 << 20  # an eighth of an octave
    # invariant: `found` values are ≥ low, k or more; `above` values are ≥ high, fewer than k
    while (found != k) & (high - low > 1):
        trial = tl.maximum(low + (high - low) // 2, high - step)
        count = tl.sum((bits >= trial).to(tl.int32))
        if count >= k:
            low = trial
            found = count
        else:
            high = trial
            above = count
            step = tl.where(step < 1 << 28, step * 2, step)  # larger steps could overflow
    strict = tl.maximum(tl.where(found == k, low, high), 1)
    left = tl.where((found == k) | (low == 0), 0, k - above)
    return strict, low, left


@triton.jit
def first_ties(bits: tl.tensor, strict: tl.tensor, low: tl.tensor, left: tl.tensor) -> tl.tensor:
    """Mask of the first `left` of `bits` that equal `low` and are below `strict`.

    The order is that of the transposed tile, row by row: down the columns here."""
    tied = (bits == low) & (bits < strict)
    ones = tied.to(tl.int32)
    columns = tl.sum(ones, 0)
    rank = tl.cumsum(ones, 0) + (tl.cumsum(columns, 0) - columns)[None, :]
    return tied & (rank <= left)


@triton.jit
def gradient_of(
    tile: tl.tensor,
    table: tl.tensor,
    tensor_of: tl.tensor,
    share: tl.tensor,
    second_beta: tl.tensor,
    second_scale: tl.tensor,
    ADAM: tl.constexpr,
    ALIGNED: tl.constexpr,
) -> tl.tensor:
    """P(share·g) of a tile, read in the parameter's own shape, with 0 in the padding. Updates the second moment in
    place."""
    fields = table + tl.load(tensor_of + tile) * 6
    gradients = tl.load(fields).to(tl.pointer_type(tl.float32))
    rows = tl.load(fields + 2).to(tl.int32)
    columns = tl.load(fields + 3).to(tl.int32)
    number = tile - tl.load(fields + 4).to(tl.int32)
    across = tl.load(fields + 5).to(tl.int32)
    if ALIGNED:
        gradients = tl.multiple_of(gradients, 16)
        columns = tl.multiple_of(columns, 4)
    row, column = number // across * 64, number % across * 64
    corner = row.to(tl.int64) * columns + column
    line = tl.arange(0, 64)
    offset = line[:, None] * columns + line[None, :]
    inside = (line < rows - row)[:, None] & (line < columns - column)[None, :]
    g = tl.load(gradients + corner + offset, mask=inside, other=0.0) * share
    if ADAM:
        moments = tl.load(fields + 1).to(tl.pointer_type(tl.float32))
        if ALIGNED:
            moments = tl.multiple_of(moments, 16)
        v = tl.load(moments + corner + offset, mask=inside, other=0.0)
        v = second_beta * v + (1 - second_beta) * g * g
        tl.store(moments + corner + offset, v, mask=inside)
        g = g / (tl.sqrt(v * second_scale) + 1e-8)  # precondition.EPSILON
    return g


@triton.jit
def magnitude(mean: tl.tensor, levels: tl.tensor) -> tl.tensor:
    """(code, value) for a tile's mean magnitude, as `magnitudes.coded`. levels: float32 [256], the value of
    each code."""
    level = tl.floor(8 * tl.log2(tl.maximum(mean, 1e-30) / 3.725290298461914e-09) + 0.5)  # OCTAVE[0] · UNIT
    code = tl.minimum(tl.maximum(level, 0.0), 255.0).to(tl.int32)
    return code, tl.where(level < 0, 0.0, tl.load(levels + code))


@triton.jit(do_not_specialize=["k"])
def compress(
    coefficients: tl.tensor,
    table: tl.tensor,
    tensor_of: tl.tensor,
    basis: tl.tensor,
    levels: tl.tensor,
    masks: tl.tensor,
    counts: tl.tensor,
    magnitudes: tl.tensor,
    codes: tl.tensor,
    k: tl.tensor,
    beta: tl.tensor,
    rate: tl.tensor,
    share: tl.tensor,
    second_beta: tl.tensor,
    second_scale: tl.tensor,
    FED: tl.constexpr,
    ADAM: tl.constexpr,
    ALIGNED: tl.constexpr,
    CODED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Process one tile; the program's number is the tile's.

    coefficients: float32 [tiles, 64, 64]. table: int64 [tensors, FIELDS]. tensor_of: int32 [tiles], row in the table.
    basis: float32 [64, 64], rows are frequencies. levels: float32 [256], the value of each code.

    Output. masks: int32 [tiles, 256], one for 16 components: bit b of number n says whether component 16·n + b is
    selected, and bit 16 + b whether its sign is negative. counts: int32 [tiles], of selected components; 0 where their
    value is 0. magnitudes: float32 [tiles], the value of a vote. codes: uint8 [tiles], if CODED."""
    tile = tl.program_id(0)
    line = tl.arange(0, 64)
    transposed = line[None, :] * 64 + line[:, None]  # the offset in C of each number in Cᵀ
    first = tile.to(tl.int64) * 4096
    c = tl.load(coefficients + first + transposed)
    if FED:
        g = gradient_of(tile, table, tensor_of, share, second_beta, second_scale, ADAM, ALIGNED)
        b = tl.load(basis + line[:, None] * 64 + line[None, :])
        half = tl.dot(g, tl.trans(b), input_precision=PRECISION)
        c = beta * c + rate * tl.dot(tl.trans(half), tl.trans(b), input_precision=PRECISION)
    # NaN counts as the second largest integer, so that the upper bound does not overflow
    bits = tl.minimum(c.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7FFFFFFE)
    strict, low, left = threshold(bits, k)
    selected = bits >= strict
    if left > 0:
        selected = selected | first_ties(bits, strict, low, left)
    count = tl.sum(selected.to(tl.int32))
    mean = tl.sum(tl.where(selected, tl.abs(c), 0.0)) / tl.maximum(count, 1)
    if CODED:
        code, mean = magnitude(mean, levels)
        tl.store(codes + tile, code.to(tl.uint8))
    tl.store(magnitudes + tile, mean)
    tl.store(counts + tile, tl.where(mean > 0, count, 0))
    bit = (1 << (line % 16))[:, None]
    marks = tl.where(selected, tl.where(c < 0, bit | (bit << 16), bit), 0)
    group = tl.arange(0, 4)[:, None]
    tl.store(masks + tile.to(tl.int64) * 256 + line[None, :] * 4 + group, tl.sum(tl.reshape(marks, [4, 16, 64]), 1))
    removed = tl.where(selected, mean, 0.0)
    tl.store(coefficients + first + transposed, tl.where(c < 0, c + removed, c - removed))


@triton.jit
def list_components(
    masks: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    magnitudes: tl.tensor,
    components: tl.tensor,
    values: tl.tensor,
) -> None:
    """Write the selected components of one tile, in ascending order; the program's number is the tile's.

    masks, counts, magnitudes: see `compress`. ends: int64 [tiles], where the tile's components end in the output.

    Output. components: int64 [total], flat over all tiles. values: float32 [total], the value of each vote."""
    tile = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + tile)
    if count > 0:
        group = tl.arange(0, 256)
        mask = tl.load(masks + tile * 256 + group)
        value = tl.load(magnitudes + tile)
        pairs = (mask & 0x5555) + ((mask >> 1) & 0x5555)  # the number of ones, by sums of ever more neighbours
        fours = (pairs & 0x3333) + ((pairs >> 2) & 0x3333)
        bytes_ = (fours & 0x0F0F) + ((fours >> 4) & 0x0F0F)
        ones = (bytes_ & 0x1F) + (bytes_ >> 8)
        slot = tl.load(ends + tile) - count + tl.cumsum(ones, 0) - ones
        first = tile * 4096 + group * 16
        rest = mask & 0xFFFF
        while tl.max(rest) > 0:
            here = rest > 0
            lowest = rest & -rest
            place = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127  # of a power of two, its exponent
            tl.store(components + slot, first + place, mask=here)
            tl.store(values + slot, tl.where((mask & (lowest << 16)) != 0, -value, value), mask=here)
            slot += here.to(tl.int64)
            rest ^= lowest
