"""What a batch of tiles goes through: the transform of what is new, the choice of components, and what leaves.

    C ← β·C + η·T(g)          accumulate: C are the momentum's coefficients, T the transform of a tile, in float
    keep the k of largest |C| a tile, zeros never
    C ← C − α·kept            what was sent leaves, the rest stays

The problem: each of these is a pass over the whole momentum, and a pass costs what a copy of it costs. Operation after
operation, as it was published, they come to two dozen copies, and the choice of 32 among 4,096 alone to several.

The sketch: the transform is linear and orthonormal, so the momentum is kept as its coefficients, and never transformed
back: what leaves is a subtraction at k places. Tiles are worked on in batches that fit a processor's cache, in buffers
that are used again, so that each number comes from memory once. And the largest are found among few: in blocks of 16
numbers, the k-th largest of the blocks' maxima is a bound that at least k numbers reach and hardly more do, whatever
the numbers are; what reaches it is then looked at exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.decode import CLIP, tile_batch
from thinwire_proto.exact.magnitudes import coded
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS
from thinwire_proto.exact.transform import float_basis

BLOCKS = (256, 1024)
"""How many blocks a tile is cut into to bound its k-th largest from below: the first of at least 2·k."""
SMALLEST = np.float32(2.0**-149)  # the smallest above 0

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kept:
    """What a batch of n tiles sends.

    components: int64 [m], flat within the batch, ascending. values: float32 [m], what each counts as, none of them 0.
    codes: uint8, one for each tile that has votes, where magnitudes travel; else empty.
    """

    components: Tensor
    values: Tensor
    codes: Tensor


class Compressor:
    """For one momentum, on one device. Its buffers are made once: two of a batch of float32, and one of bool.

    Tensors of tiles are contiguous float32, [n, 64, 64] of matrices or [n, 64] of vectors, of `batch_components`
    numbers at most.
    """

    def __init__(self, spec: DemoSpec, device: torch.device | str) -> None:
        self._spec = spec
        self._device = torch.device(device)
        self.batch_tiles = tile_batch(self._device)
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def batch_components(self) -> int:
        return self.batch_tiles * MATRIX_COMPONENTS

    def room(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Two tensors of this shape to work in; what is in them lasts until the next call of `accumulate` or `cut`."""
        first, second, _ = self._room()
        size = prod(shape)
        return first[:size].view(shape), second[:size].view(shape)

    def _room(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._buffers is None:
            first, second = (torch.empty(self.batch_components, device=self._device) for _ in range(2))
            self._buffers = first, second, torch.empty_like(first, dtype=torch.bool)
        return self._buffers

    def accumulate(self, coefficients: Tensor, gradient: Tensor, rate: float) -> None:
        """C ← β·C + rate·T(gradient), in place. gradient: tiles in the shape of the coefficients, which may be the
        first of `room`."""
        b, beta = float_basis(self._spec.transform, self._device), self._spec.beta
        if coefficients.dim() == 2:
            coefficients.addmm_(gradient, b.T, beta=beta, alpha=rate)
            return
        _, half = self.room(coefficients.shape)
        torch.mm(gradient.view(-1, len(b)), b.T, out=half.view(-1, len(b)))
        coefficients.baddbmm_(b.expand(len(half), -1, -1), half, beta=beta, alpha=rate)

    def extract(self, coefficients: Tensor, k: int) -> Kept:
        """Take the k largest of each tile out of the coefficients, in place."""
        flat = coefficients.view(-1)
        magnitudes, _ = self.room(coefficients.shape)
        index = self.choose(torch.abs(coefficients, out=magnitudes).flatten(1), k)
        values = flat[index]
        values, codes = self._counting_as(values, index // magnitudes[0].numel(), len(coefficients))
        if self._spec.magnitude == "tile":  # one that is too small for any code counts as 0
            voted = values != 0
            index, values = index[voted], values[voted]
        flat.index_add_(0, index, values, alpha=-self._spec.alpha)
        return Kept(index, values, codes)

    def choose(self, magnitudes: Tensor, k: int) -> Tensor:
        """Which of the magnitudes [n, c] are kept: int64, flat, ascending, at most k of each tile, and no zeros."""
        return largest(magnitudes, k, self._room()[2])

    def _counting_as(self, values: Tensor, tile: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
        """Sign times mean magnitude of the tile, or what its code stands for; and the codes. values, tile: [m]."""
        count = torch.bincount(tile, minlength=tiles)
        mean = torch.zeros(tiles, device=values.device).index_add_(0, tile, values.abs()).div_(count.clamp(min=1))
        if self._spec.magnitude != "tile":
            return torch.copysign(mean[tile], values), torch.empty(0, dtype=torch.uint8, device=values.device)
        codes, mean = coded(mean)
        return torch.copysign(mean[tile], values), codes[(count > 0) & (mean > 0)]

    def expand(self, components: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
        """T⁻¹ of few components: tiles of `shape`, the first of `room`. components: int64 [m], flat within them."""
        b = float_basis(self._spec.transform, self._device)
        tiles, half = self.room(shape)
        (half if tiles.dim() == 2 else tiles).zero_().view(-1)[components] = values
        if tiles.dim() == 2:
            return torch.mm(half, b, out=tiles)
        torch.mm(tiles.view(-1, len(b)), b, out=half.view(-1, len(b)))
        return torch.bmm(b.T.expand(len(half), -1, -1), half, out=tiles)

    def step(self, components: Tensor, values: Tensor, shape: torch.Size, rate: float) -> Tensor:
        """What an update of these votes alone would add to the parameters, as exact as looking ahead needs it. rate: of
        learning, or with magnitudes what they are times. Else arguments and room as for `expand`."""
        taken, other = self.expand(components, values, shape), self.room(shape)[1]
        if self._spec.magnitude == "tile":
            return taken.mul_(-rate)
        if self._spec.magnitude == "sign":
            return taken.sign_().mul_(-rate)
        mean = torch.abs(taken, out=other).flatten(1).mean(1)
        unit = CLIP * mean.clamp_(min=torch.finfo(torch.float32).tiny)
        taken.mul_((-rate / unit).view(-1, *[1] * (taken.dim() - 1)))
        return taken.clamp_(-rate, rate)


def largest(magnitudes: Tensor, k: int, mask: Tensor) -> Tensor:
    """Places of the k largest in each row of [n, c], in the flat tensor: int64 [m], ascending. Zeros are never among
    them; of equals at the edge, those at the lowest places are. mask: bool, of n·c or more, to work in."""
    rows, size = magnitudes.shape
    mask = mask[: rows * size].view(rows, size)
    if k >= size:
        return torch.gt(magnitudes, 0, out=mask).view(-1).nonzero().view(-1)
    if magnitudes.device.type != "cpu":
        return _largest_of_rows(magnitudes, k, mask).view(-1).nonzero().view(-1)
    blocks = next((blocks for blocks in BLOCKS if 2 * k <= blocks <= size // 4), None)
    maxima = None if blocks is None else magnitudes.view(rows, -1, blocks).amax(1).numpy()
    return torch.from_numpy(_largest_on_cpu(magnitudes.numpy(), k, mask.numpy(), maxima))


def _largest_on_cpu(values: Floats, k: int, mask: Bools, maxima: Floats | None) -> Places:
    """`largest` in numpy, whose partition, comparison and search for what is true are several times as fast as torch's.
    maxima: of the blocks of each row, [n, blocks]."""
    rows, size = values.shape
    if maxima is None:
        return np.flatnonzero(_largest_in(values, k, mask))
    np.greater_equal(values, np.maximum(_kth_largest(maxima, k), SMALLEST), out=mask)
    found = np.flatnonzero(mask)
    ends = np.searchsorted(found, np.arange(1, rows + 1) * size)
    count = np.diff(ends, prepend=0)
    width = int(count.max())
    if width <= k:
        return found
    if width > size // 4:  # equals without end, or next to it
        return np.flatnonzero(_largest_in(values, k, mask))
    few = np.zeros((rows, width), np.float32)
    place = np.arange(len(found)) + (np.arange(rows) * width - (ends - count)).repeat(count)
    few.reshape(-1)[place] = values.reshape(-1)[found]
    kept: Places = found[_largest_in(few, k, np.empty(few.shape, np.bool_)).reshape(-1)[place]]
    return kept


def _largest_in(values: Floats, k: int, out: Bools) -> Bools:
    """Which are the k largest of their row, in `out`. values: 0 or more, [n, c] with k < c."""
    bound = np.maximum(_kth_largest(values, k), SMALLEST)
    np.greater_equal(values, bound, out=out)
    crowded = np.flatnonzero(np.count_nonzero(out, axis=1) > k)  # where some are equal to the bound
    if len(crowded):
        above, level = values[crowded] > bound[crowded], values[crowded] == bound[crowded]
        room = k - np.count_nonzero(above, axis=1, keepdims=True)
        out[crowded] = above | (level & (np.cumsum(level, axis=1, dtype=np.int16) <= room))
    return out


def _kth_largest(values: Floats, k: int) -> Floats:
    """Of each row: [n, c] to [n, 1]."""
    place = values.shape[1] - k
    return np.partition(values, place, axis=1)[:, place : place + 1]


def _largest_of_rows(values: Tensor, k: int, out: Tensor) -> Tensor:
    """`_largest_in`, on any device."""
    bound = values.topk(k, dim=1).values[:, -1:].clamp(min=float(SMALLEST))
    torch.ge(values, bound, out=out)
    crowded = (out.sum(1) > k).nonzero().view(-1)
    if len(crowded):
        above, level = values[crowded] > bound[crowded], values[crowded] == bound[crowded]
        room = k - above.sum(1, keepdim=True)
        out[crowded] = above | (level & (level.cumsum(1, dtype=torch.int16) <= room))
    return out
