"""Selection of the k largest numbers of each row, as fast as a few copies.

Sorting 4,096 numbers to find 32 costs several times as much as a copy. So selection first narrows the candidates: in
blocks of 16 numbers, the k-th largest of the blocks' maxima is a lower bound that at least k numbers reach and hardly
more do, for any input. Only these candidates are then compared exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCKS = (256, 1024)
"""Possible numbers of blocks a tile. Selection uses the first that is at least 2·k, to bound the k-th largest from
below."""
SMALLEST = np.float32(2.0**-149)  # the smallest positive float32

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]


def largest(magnitudes: Tensor, k: int, mask: Tensor) -> Tensor:
    """Flat positions of the k largest in each row of [n, c], int64 [m], ascending.

    Zeros are never selected; ties at the boundary go to the lowest positions. mask: scratch space, bool, at least n·c.
    """
    rows, size = magnitudes.shape
    mask = mask[: rows * size].view(rows, size)
    if k >= size:
        return torch.gt(magnitudes, 0, out=mask).view(-1).nonzero().view(-1)
    if magnitudes.device.type != "cpu":
        return _largest_of_rows(magnitudes, k, mask).view(-1).nonzero().view(-1)
    blocks = next((blocks for blocks in BLOCKS if 2 * k <= blocks <= size // 4), None)
    maxima = None if blocks is None else magnitudes.view(rows, -1, blocks).amax(1).numpy()
    return torch.from_numpy(_largest_on_cpu(magnitudes.numpy(), k, mask.numpy(), maxima))


def _largest_on_cpu(values: Floats, k: int, mask: Bools, maxima: Floats | None) -> Positions:
    """`largest` in numpy, whose partition, comparison and search are several times as fast as torch's on a CPU.

    maxima: of the blocks of each row, [n, blocks].
    """
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
    if width > size // 4:  # (nearly) everything is tied
        return np.flatnonzero(_largest_in(values, k, mask))
    few = np.zeros((rows, width), np.float32)
    position = np.arange(len(found)) + (np.arange(rows) * width - (ends - count)).repeat(count)
    few.reshape(-1)[position] = values.reshape(-1)[found]
    selected: Positions = found[_largest_in(few, k, np.empty(few.shape, np.bool_)).reshape(-1)[position]]
    return selected


def _largest_in(values: Floats, k: int, out: Bools) -> Bools:
    """Mask of the k largest in each row, written to `out`. values: 0 or more, [n, c] with k < c."""
    bound = np.maximum(_kth_largest(values, k), SMALLEST)
    np.greater_equal(values, bound, out=out)
    tied = np.flatnonzero(np.count_nonzero(out, axis=1) > k)  # rows with ties at the bound
    if len(tied):
        above, level = values[tied] > bound[tied], values[tied] == bound[tied]
        left = k - np.count_nonzero(above, axis=1, keepdims=True)
        out[tied] = above | (level & (np.cumsum(level, axis=1, dtype=np.int16) <= left))
    return out


def _kth_largest(values: Floats, k: int) -> Floats:
    """The k-th largest of each row: [n, c] to [n, 1]."""
    position = values.shape[1] - k
    return np.partition(values, position, axis=1)[:, position : position + 1]


def _largest_of_rows(values: Tensor, k: int, out: Tensor) -> Tensor:
    """`_largest_in`, on any device."""
    bound = values.topk(k, dim=1).values[:, -1:].clamp(min=float(SMALLEST))
    torch.ge(values, bound, out=out)
    tied = (out.sum(1) > k).nonzero().view(-1)
    if len(tied):
        above, level = values[tied] > bound[tied], values[tied] == bound[tied]
        left = k - above.sum(1, keepdim=True)
        out[tied] = above | (level & (level.cumsum(1, dtype=torch.int16) <= left))
    return out
