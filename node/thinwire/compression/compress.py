"""The compressor for a batch of tiles: transform, top-k selection, and subtraction of what is sent.

    C ← β·C + η·T(g)          accumulate: C are the momentum's coefficients, T the transform of a tile, in float
    select the k largest |C| of each tile, never zeros
    C ← C − selected        what was sent leaves the momentum, the rest stays

The problem: each line is a pass over the whole momentum, and each pass costs as much as a copy. Executed operation by
operation, as published (arXiv 2411.19870), the algorithm costs two dozen copies; the selection of 32 among 4,096 alone
costs several.

The sketch: the transform is linear and orthonormal, so the momentum is stored as its coefficients and never transformed
back. Removing what was sent is a subtraction at k positions. Tiles are processed in batches that fit a processor's
cache, in buffers that are reused, so that each number is read from memory once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from thinwire.compression.sent import Fill
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.decode import CLIP, tile_batch
from thinwire_proto.exact.magnitudes import coded
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS
from thinwire_proto.exact.transform import float_basis
from thinwire_proto.largest import largest


def zeros(shape: Sequence[int], device: torch.device | str) -> Tensor:
    """Float32 zeros. torch writes its zeros at once; numpy asks the system for pages that are cleared on first use."""
    if torch.device(device).type == "cpu":
        return torch.from_numpy(np.zeros(tuple(shape), np.float32))
    return torch.zeros(tuple(shape), dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Extracted:
    """The components extracted from a batch of n tiles.

    components: int64 [m], flat within the batch, ascending. values: float32 [m], the value of each vote, never 0.
    codes: uint8, with magnitudes one for each tile that has votes, else empty."""

    components: Tensor
    values: Tensor
    codes: Tensor


class Compressor:
    """Compresses one momentum on one device.

    Tensors of tiles are contiguous float32, [n, 64, 64] of matrices or [n, 64] of vectors, with at most
    `batch_components` numbers. Each thread passes its own slot (see `batch_pool`), whose buffers
    are two float32 batches and one bool batch, allocated once."""

    def __init__(self, spec: DemoSpec, device: torch.device | str) -> None:
        self._spec = spec
        self._device = torch.device(device)
        self.batch_tiles = tile_batch(self._device)
        self._buffers: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def amend(self, spec: DemoSpec) -> None:
        """Go on with other amendable settings."""
        self._spec = spec

    @property
    def batch_components(self) -> int:
        return self.batch_tiles * MATRIX_COMPONENTS

    def buffers(self, shape: torch.Size, slot: int = 0) -> tuple[Tensor, Tensor]:
        """Two scratch tensors of this shape. Their contents last until the slot's next call of `accumulate` or
        `extract`."""
        first, second, _ = self._allocated(slot)
        size = prod(shape)
        return first[:size].view(shape), second[:size].view(shape)

    def _allocated(self, slot: int) -> tuple[Tensor, Tensor, Tensor]:
        if slot not in self._buffers:
            first, second = (
                torch.empty(self.batch_components, dtype=torch.float32, device=self._device) for _ in range(2)
            )
            self._buffers[slot] = first, second, torch.empty_like(first, dtype=torch.bool)
        return self._buffers[slot]

    def accumulate(self, coefficients: Tensor, gradient: Tensor, rate: float, slot: int = 0) -> None:
        """C ← β·C + rate·T(gradient), in place.

        gradient: tiles in the shape of the coefficients; may be the first of `buffers`."""
        b, beta = float_basis(self._device), self._spec.beta
        if coefficients.dim() == 2:
            coefficients.addmm_(gradient, b.T, beta=beta, alpha=rate)
            return
        _, half = self.buffers(coefficients.shape, slot)
        torch.mm(gradient.view(-1, len(b)), b.T, out=half.view(-1, len(b)))
        coefficients.baddbmm_(b.expand(len(half), -1, -1), half, beta=beta, alpha=rate)

    def extract(self, coefficients: Tensor, k: int, slot: int = 0) -> Extracted:
        """Extract the k largest coefficients of each tile, and subtract them in place."""
        flat = coefficients.view(-1)
        magnitudes, _ = self.buffers(coefficients.shape, slot)
        index = self.choose(torch.abs(coefficients, out=magnitudes).flatten(1), k, slot)
        values = flat[index]
        values, codes = self._vote_values(values, index // magnitudes[0].numel(), len(coefficients))
        if self._spec.magnitude == "tile":  # a magnitude too small for any code has value 0
            voted = values != 0
            index, values = index[voted], values[voted]
        flat.index_add_(0, index, values, alpha=-1)
        return Extracted(index, values, codes)

    def extract_whole(self, coefficients: Tensor, signs: Tensor, sizes: Tensor, codes: Tensor, slot: int = 0) -> None:
        """Extract all coefficients of each of n tiles, and subtract them in place.

        Written are: signs, int8 in the shape of the coefficients, 1 or −1, where 0 counts as +; the value and the code
        of each tile, [n]. A tile whose mean magnitude is too small for any code has signs and value 0."""
        magnitudes, _ = self.buffers(coefficients.shape, slot)
        found, values = coded(torch.abs(coefficients, out=magnitudes).flatten(1).mean(1))
        codes.copy_(found)
        sizes.copy_(values)
        torch.ge(coefficients, 0, out=magnitudes).mul_(2).sub_(1)
        each = values.view(-1, *[1] * (coefficients.dim() - 1))
        signs.copy_(magnitudes.mul_(each > 0))
        coefficients.sub_(magnitudes.mul_(each))

    def extract_levels(self, coefficients: Tensor, levels: Tensor, sizes: Tensor, codes: Tensor, slot: int = 0) -> None:
        """Round all coefficients of each of n tiles to levels, and subtract what these stand for in place.

        A level is `vote_step` standard deviations of the tile; they end at `vote_levels`. Written are: levels, int8 in
        the shape of the coefficients; the value of one and its code of each tile, [n]. A tile whose coefficients are
        too small for any code has levels and value 0."""
        rounded, _ = self.buffers(coefficients.shape, slot)
        deviation = torch.square(coefficients, out=rounded).flatten(1).mean(1).sqrt_()
        found, values = coded(deviation.mul_(self._spec.vote_step))
        codes.copy_(found)
        each = values.view(-1, *[1] * (coefficients.dim() - 1))
        most, tiny = self._spec.vote_levels, torch.finfo(torch.float32).tiny
        torch.div(coefficients, each.clamp(min=tiny), out=rounded).round_().clamp_(-most, most).mul_(each > 0)
        sizes.copy_(torch.where(rounded.flatten(1).any(1), values, 0.0))
        levels.copy_(rounded)
        coefficients.sub_(rounded.mul_(each))

    def choose(self, magnitudes: Tensor, k: int, slot: int = 0) -> Tensor:
        """Select the largest magnitudes: at most k in each row of [n, c], never zeros. Returns int64, flat,
        ascending."""
        return largest(magnitudes, k, self._allocated(slot)[2])

    def _vote_values(self, values: Tensor, tile: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
        """The value of each vote, and the codes of the tiles.

        A value is the sign times the tile's mean magnitude, or times the value of its code. values, tile: [m]."""
        count = torch.bincount(tile, minlength=tiles)
        mean = (
            torch.zeros(tiles, dtype=torch.float32, device=values.device)
            .index_add_(0, tile, values.abs())
            .div_(count.clamp(min=1))
        )
        if self._spec.magnitude != "tile":
            return torch.copysign(mean[tile], values), torch.empty(0, dtype=torch.uint8, device=values.device)
        codes, mean = coded(mean)
        return torch.copysign(mean[tile], values), codes[(count > 0) & (mean > 0)]

    def expand(self, fill: Fill, shape: torch.Size, slot: int = 0) -> Tensor:
        """T⁻¹ of what `fill` writes, as tiles of `shape` in the first of `buffers`."""
        b = float_basis(self._device)
        tiles, half = self.buffers(shape, slot)
        if tiles.dim() == 2:
            fill(half)
            return torch.mm(half, b, out=tiles)
        fill(tiles)
        torch.mm(tiles.view(-1, len(b)), b, out=half.view(-1, len(b)))
        return torch.bmm(b.T.expand(len(half), -1, -1), half, out=tiles)

    def step(self, expanded: Tensor, rate: float, slot: int = 0) -> Tensor:
        """The change of the parameters by an update with these votes alone, precise enough to look ahead.

        expanded: the result of `expand`, which is overwritten. rate: the learning rate, or with magnitudes the outer
        rate."""
        other = self.buffers(expanded.shape, slot)[1]
        if self._spec.magnitude == "tile":
            return expanded.mul_(-rate)
        if self._spec.magnitude == "sign":
            return expanded.sign_().mul_(-rate)
        mean = torch.abs(expanded, out=other).flatten(1).mean(1)
        unit = CLIP * mean.clamp_(min=torch.finfo(torch.float32).tiny)
        expanded.mul_((-rate / unit).view(-1, *[1] * (expanded.dim() - 1)))
        return expanded.clamp_(-rate, rate)
