"""The exact application of merged votes to parameters (design section 3.6), for whoever holds them: a replica, or the
optimizer of somebody's own training script."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.contract import DemoSpec
from thinwire_proto.decode import TILE_BATCH, clipped, directions, displacements, scale_votes
from thinwire_proto.tiles import TileLayout, band_of, untile
from thinwire_proto.votes import Merged, Signs

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
LARGEST_SUBNORMAL = SMALLEST_NORMAL - 2.0**-149


@torch.no_grad()
def apply_votes(
    tensors: Mapping[str, Tensor],
    merged: Merged | Signs,
    layout: TileLayout,
    demo: DemoSpec,
    *,
    learning_rate: float,
    decay: float,
    step: int,
) -> None:
    """θ ← θ·c, then θ ← θ − η·sign(X), or what takes its place (see `decode`), or with magnitudes θ ← θ − S·X: two
    operations, each rounded, never fused; subnormals become zero.

    tensors: θ_step, float32 by the layout's names, contiguous, on one device, changed in place. learning_rate and
    decay: η and c, float32 numbers that all replicas hold alike.
    """
    if not layout.tensors:
        return
    if isinstance(merged, Signs):
        _apply_signs(tensors, merged, layout, learning_rate, decay)
        return
    scaled, rates = whole_tiles(merged, layout, learning_rate, tensors[layout.tensors[0].name].device)
    for batch in layout.batches(TILE_BATCH):
        of_batch, rate = layout.tiles_of_batch(scaled, batch), rates[layout.numbers_of(batch)]
        rate = rate[:, None, None] if batch.is_matrix else rate[:, None]
        if merged.scales is not None:
            change = displacements(of_batch, demo.transform, rate)
        elif demo.magnitude == "clipped":
            change = clipped(of_batch, demo.transform, learning_rate)
        else:
            change = torch.copysign(rate, directions(of_batch, demo.transform, step))
        for part in batch.parts:
            theta = band_of(tensors[part.tensor.name], part.tensor, part.rows)
            _step(theta, untile(change[part.tiles], part.tensor, theta.shape[0]), decay)


def whole_tiles(
    merged: Merged, layout: TileLayout, learning_rate: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """V' of all tiles, int8, flat in tile space, and what each of them steps by, float32 [tiles]; see `_tile_rates`."""
    places = torch.from_numpy(merged.components)
    tile = torch.from_numpy(layout.tile_of(merged.components)).to(device)
    votes, rates = _tile_rates(merged, tile, layout.tiles, learning_rate)
    scaled = torch.zeros(layout.components, dtype=torch.int8, device=device)
    scaled[places.to(device)] = votes
    return scaled, rates


def _apply_signs(
    tensors: Mapping[str, Tensor], signs: Signs, layout: TileLayout, learning_rate: float, decay: float
) -> None:
    """The same step to the bit as by the merged votes that the signs come from."""
    start = 0
    for tensor in layout.tensors:
        steps = layout.in_tiles(tensor, signs.stepped)
        change = np.zeros(steps.shape, np.float32)
        count = int(np.count_nonzero(steps))
        rate = np.float32(learning_rate)
        change[steps] = np.where(signs.positive[start : start + count], rate, -rate)
        start += count
        theta = band_of(tensors[tensor.name], tensor, slice(None))
        _step(theta, torch.from_numpy(change).to(theta.device), decay)


def _tile_rates(merged: Merged, tile: Tensor, tiles: int, learning_rate: float) -> tuple[Tensor, Tensor]:
    """V' of the merged votes, int8 [n], and what each of `tiles` steps by, float32: η, or its scale. A tile without
    votes steps by zero, which changes no bit. tile: int64 [n], ascending, which of them each belongs to."""
    values = torch.from_numpy(merged.values).to(tile.device)
    if merged.scales is None:
        votes, stepped = scale_votes(values, tile, tiles)
        return votes, torch.where(stepped, torch.tensor(learning_rate, device=tile.device), 0.0)
    rates = torch.zeros(tiles, device=tile.device)
    rates[torch.unique_consecutive(tile)] = torch.from_numpy(merged.scales).to(tile.device)
    return values.to(torch.int8), rates


def _step(theta: Tensor, change: Tensor, decay: float) -> None:
    if decay != 1.0:
        theta.mul_(decay)
        flush_subnormals(theta)
    theta.sub_(change)
    flush_subnormals(theta)


def flush_subnormals(tensor: Tensor) -> None:
    """Replace zeros of either sign and subnormals by +0, so that machines that flush them and others agree."""
    torch.ops.aten.hardshrink.out(tensor, LARGEST_SUBNORMAL, out=tensor)  # x where |x| > LARGEST_SUBNORMAL, else +0
