"""Blocks of parameters: each tensor, flat, in runs of BLOCK numbers and a shorter rest. A block has one scale.

Blocks end where tensors end, because the changes of two tensors may differ in size by orders of magnitude.

The scale of a block is one byte: a code for a value of the table of `thinwire_proto.exact.magnitudes`, which has eight
significant bits. Code 0 stands for 0: nothing changes there. No machine's logarithm or division enters a decoded scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.exact.decode import VOTE_MAX
from thinwire_proto.exact.magnitudes import OCTAVE, TABLE, UNIT
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import STEP_MAX

BLOCK = 1024
"""Numbers that share a scale of one byte: 0.008 bits each."""


class Blocks:
    """The blocks of a layout, in the manifest's order."""

    def __init__(self, layout: TileLayout) -> None:
        self._sizes = [math.prod(tensor.shape) for tensor in layout.tensors]
        lengths = [length for size in self._sizes for length in _lengths(size)]
        self.count = len(lengths)
        self.lengths = torch.tensor(lengths, dtype=torch.int64)
        """Numbers of each block."""

    def spans(self, numbers_max: int) -> Iterator[tuple[slice, slice, int]]:
        """Runs of blocks of one size, of about so many numbers at most: the numbers, the blocks, and the size."""
        start = block = 0
        for size in self._sizes:
            for length in (BLOCK, size % BLOCK):
                left = size // BLOCK if length == BLOCK else 1
                while length and left:
                    count = min(left, max(1, numbers_max // length))
                    yield slice(start, start + count * length), slice(block, block + count), length
                    start, block, left = start + count * length, block + count, left - count

    def mean_magnitudes(self, flat: Tensor) -> Tensor:
        """Mean of |x| in each block of a float32 tensor [parameters]; float32 [blocks]."""
        sums = [rows.abs().sum(1) for rows in self._rows(flat)]
        return torch.cat(sums) / self.lengths.to(flat.device) if sums else flat.new_zeros(0)

    def largest_magnitudes(self, flat: Tensor) -> Tensor:
        """Largest |x| in each block of a float32 tensor [parameters]; float32 [blocks]."""
        largest = [torch.maximum(rows.amax(1), -rows.amin(1)) for rows in self._rows(flat)]
        return torch.cat(largest) if largest else flat.new_zeros(0)

    def norms(self, flat: Tensor) -> Tensor:
        """Root of the sum of x² of each block of a float32 tensor [parameters]; float32 [blocks]."""
        norms = [rows.norm(dim=1) for rows in self._rows(flat)]
        return torch.cat(norms) if norms else flat.new_zeros(0)

    def distances(self, flat: Tensor, other: Tensor) -> Tensor:
        """`norms` of the difference of two tensors, which takes no memory as a whole."""
        norms = [(rows - others).norm(dim=1) for rows, others in zip(self._rows(flat), self._rows(other), strict=True)]
        return torch.cat(norms) if norms else flat.new_zeros(0)

    def scale_(self, flat: Tensor, scales: Tensor) -> Tensor:
        """Multiply each number of a float32 tensor [parameters], in place, by its block's scale of float32 [blocks]."""
        start = 0
        for rows in self._rows(flat):
            end = start + len(rows)
            rows.mul_(scales[start:end].view(-1, 1))
            start = end
        return flat

    def _rows(self, flat: Tensor) -> Iterator[Tensor]:
        """The full blocks of each tensor [blocks, BLOCK], then its rest [1, rest]; without empty ones."""
        for tensor in torch.split(flat, self._sizes):
            full = len(tensor) // BLOCK * BLOCK
            if full:
                yield tensor[:full].view(-1, BLOCK)
            if full < len(tensor):
                yield tensor[full:].view(1, -1)


def _lengths(size: int) -> list[int]:
    full, rest = divmod(size, BLOCK)
    return [BLOCK] * full + ([rest] if rest else [])


Codes = npt.NDArray[np.uint8]

SMALLEST = OCTAVE[0] * UNIT
PER_OCTAVE = len(OCTAVE)


def values_table() -> npt.NDArray[np.float32]:
    """The value of each code, float32 [256]."""
    values = TABLE * UNIT
    values[0] = 0.0
    return values.astype(np.float32)


VALUES = values_table()

assert float(VALUES[-1]) * VOTE_MAX < STEP_MAX


def nearest_codes(magnitudes: Tensor) -> Codes:
    """The code of the nearest value to each magnitude of 0 or more. Too large ones get the largest code."""
    return _codes(torch.round(_positions(magnitudes)))


def covering_codes(magnitudes: Tensor) -> Codes:
    """The code of the smallest value that is at least as large, or hardly smaller, as each magnitude."""
    return _codes(torch.ceil(_positions(magnitudes) - 0.01))


def _positions(magnitudes: Tensor) -> Tensor:
    return PER_OCTAVE * torch.log2(magnitudes.double().clamp(min=1e-30) / SMALLEST)


def _codes(positions: Tensor) -> Codes:
    codes: Codes = positions.clamp(0, len(TABLE) - 1).to(torch.uint8).cpu().numpy()
    return codes
