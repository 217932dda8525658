"""One fused kernel for all that the compressor does to a 64×64 tile, in Triton: for CUDA and ROCm.

The problem: operation by operation, each tile crosses the card's memory a dozen times (gradient, second moment, two
products of the transform, magnitudes, top-k, what leaves). Nobody needs what lies between.

The sketch: one program a tile. It reads the gradient where it lies, in the parameter's own shape, and the momentum's
coefficients (see `compress`: the transform is linear, so these are what is kept from round to round). What follows
stays in registers and shared memory, and the coefficients are written back:

    v ← β₂·v + (1 − β₂)·g²             with preconditioning
    X = P(g)·bᵀ, Cᵀ ← β·Cᵀ + η·Xᵀ·bᵀ    so that C ← β·C + η·b·P(g)·bᵀ
    T = the k-th largest |C|           by bisection on the bits
    C ← C − α·a·sign(C)                where C is kept; a is the mean of their magnitudes, or what its code stands for
    out: positions and signs of what is kept, how many, and a

So what crosses the memory is 12 bytes a parameter, 20 with preconditioning, and little for the components.

Transposes. The matrix unit wants the right factor of a TF32 product with its inner index running fastest. Written as
above, that factor is always the basis, a constant, and the coefficients come out as Cᵀ. That is as good: a tile is read
and written the other way round, and so is the order of positions.

The threshold. Floats without their sign have the order of their bits, read as integers. After the residual has worked
for a while the kept components of a tile lie close together; so the search gallops down from the largest, and bisects
once it is below the threshold. It ends as soon as exactly k are above, most often after a dozen counts; or with one
number left, where several components have the same magnitude, and then those at the lowest positions are kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

FIELDS = 6
"""Of a tensor in the table, int64: addresses of its gradient and of its second moment, rows, columns, its first tile,
and how many of its tiles lie side by side."""


@triton.jit
def threshold(bits: tl.tensor, k: tl.tensor) -> tl.tensor:
    """(strict, low, room): of `bits`, int32 [64, 64], those ≥ strict are kept, and the first `room` that equal `low`.
    That is the k largest, but nothing that is 0."""
    low = 0
    found = 4096
    high = tl.max(bits) + 1
    above = 0
    step = 1 << 20  # an eighth of an octave
    # always: `found` are ≥ low, k or more; `above` are ≥ high, fewer than k
    while (found != k) & (high - low > 1):
        trial = tl.maximum(low + (high - low) // 2, high - step)
        count = tl.sum((bits >= trial).to(tl.int32))
        if count >= k:
            low = trial
            found = count
        else:
            high = trial
            above = count
            step = tl.where(step < 1 << 28, step * 2, step)  # beyond that, halves are smaller; and it must not overflow
    strict = tl.maximum(tl.where(found == k, low, high), 1)
    room = tl.where((found == k) | (low == 0), 0, k - above)
    return strict, low, room


@triton.jit
def choose(bits: tl.tensor, k: tl.tensor) -> tl.tensor:
    """(kept, slot): which of `bits`, int32 [64, 64], are the k largest, and the place of each kept one among them. The
    order is that of the transposed tile, row by row: down the columns here."""
    strict, low, room = threshold(bits, k)
    above = bits >= strict
    equal = (bits == low) & (bits < strict)
    # two counts in one scan: neither reaches 2¹⁶
    both = above.to(tl.int32) + (equal.to(tl.int32) << 16)
    columns = tl.sum(both, 0)
    rank = tl.cumsum(both, 0) + (tl.cumsum(columns, 0) - columns)[None, :]
    of_equal = rank >> 16
    kept = above | (equal & (of_equal <= room))
    return kept, (rank & 0xFFFF) + tl.minimum(of_equal, room) - 1


@triton.jit
def gradient_of(
    tile: tl.tensor,
    table: tl.tensor,
    tensor_of: tl.tensor,
    share: tl.tensor,
    second_beta: tl.tensor,
    second_weight: tl.tensor,
    ADAM: tl.constexpr,
    ALIGNED: tl.constexpr,
) -> tl.tensor:
    """P(share·g) of a tile, read in the parameter's own shape; its second moment goes on there. 0 in the padding."""
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
    place = line[:, None] * columns + line[None, :]
    inside = (line < rows - row)[:, None] & (line < columns - column)[None, :]
    g = tl.load(gradients + corner + place, mask=inside, other=0.0) * share
    if ADAM:
        moments = tl.load(fields + 1).to(tl.pointer_type(tl.float32))
        if ALIGNED:
            moments = tl.multiple_of(moments, 16)
        v = tl.load(moments + corner + place, mask=inside, other=0.0)
        v = second_beta * v + (1 - second_beta) * g * g
        tl.store(moments + corner + place, v, mask=inside)
        g = g / (tl.sqrt(v / second_weight) + 1e-8)  # precondition.EPSILON
    return g


@triton.jit
def magnitude(mean: tl.tensor, levels: tl.tensor) -> tl.tensor:
    """(code, what it stands for) of a tile's mean magnitude: `magnitudes.coded`. levels: float32 [256], its table."""
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
    positions: tl.tensor,
    counts: tl.tensor,
    magnitudes: tl.tensor,
    codes: tl.tensor,
    k: tl.tensor,
    beta: tl.tensor,
    rate: tl.tensor,
    share: tl.tensor,
    second_beta: tl.tensor,
    second_weight: tl.tensor,
    alpha: tl.tensor,
    FED: tl.constexpr,
    ADAM: tl.constexpr,
    ALIGNED: tl.constexpr,
    CODED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One tile; the program's number is the tile's.

    coefficients: float32 [tiles, 64, 64]. table: int64 [tensors, FIELDS]. tensor_of: int32 [tiles], its row in the
    table. basis: float32 [64, 64], rows are frequencies. levels: float32 [256], what codes stand for. Out: positions,
    int16 [tiles, k], in the tile, with the sign in bit 12 (1 is negative), the first `counts`, int32 [tiles], of them
    written; magnitudes, float32 [tiles], what a vote counts as; codes, uint8 [tiles], where CODED.
    """
    tile = tl.program_id(0)
    line = tl.arange(0, 64)
    turned = line[None, :] * 64 + line[:, None]  # the place in C of each number in Cᵀ
    first = tile.to(tl.int64) * 4096
    c = tl.load(coefficients + first + turned)
    if FED:
        g = gradient_of(tile, table, tensor_of, share, second_beta, second_weight, ADAM, ALIGNED)
        b = tl.load(basis + line[:, None] * 64 + line[None, :])
        half = tl.dot(g, tl.trans(b), input_precision=PRECISION)
        c = beta * c + rate * tl.dot(tl.trans(half), tl.trans(b), input_precision=PRECISION)
    # what is not a number counts as large, and leaves room above it
    bits = tl.minimum(c.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7FFFFFFE)
    kept, slot = choose(bits, k)
    count = tl.sum(kept.to(tl.int32))
    mean = tl.sum(tl.where(kept, tl.abs(c), 0.0)) / tl.maximum(count, 1)
    if CODED:
        code, mean = magnitude(mean, levels)
        tl.store(codes + tile, code.to(tl.uint8))
    tl.store(magnitudes + tile, mean)
    tl.store(counts + tile, tl.where(mean > 0, count, 0))
    tl.store(positions + tile.to(tl.int64) * k + slot, (turned + tl.where(c < 0, 4096, 0)).to(tl.int16), mask=kept)
    leaves = tl.where(kept, alpha * mean, 0.0)
    tl.store(coefficients + first + turned, tl.where(c < 0, c + leaves, c - leaves))
