"""The exact application of merged votes to parameters (design section 3.6), for whoever holds them: a replica, or the
optimizer of somebody's own training script."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.contract import TILE_EDGE, DemoSpec
from thinwire_proto.decode import clipped, directions, displacements, scale_votes, tile_batch
from thinwire_proto.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, Batch, Part, TileLayout
from thinwire_proto.votes import Merged

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
LARGEST_SUBNORMAL = SMALLEST_NORMAL - 2.0**-149


@torch.no_grad()
def apply_votes(
    tensors: Mapping[str, Tensor],
    merged: Merged,
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
    device = tensors[layout.tensors[0].name].device
    tile = torch.from_numpy(layout.tile_of(merged.components)).to(device)
    votes, rates = _tile_rates(merged, tile, layout.tiles, learning_rate)
    batches = layout.batches(tile_batch(device))
    places = torch.from_numpy(merged.components).to(device)
    starts = np.searchsorted(merged.components, [_first_component(layout, batch) for batch in batches]).tolist()
    size = max(_shape(batch).numel() for batch in batches)
    room = torch.empty(2, size, device=device)
    for batch, start, end in zip(batches, starts, [*starts[1:], len(places)], strict=True):
        shape = _shape(batch)
        scaled, other = (buffer[: shape.numel()].view(shape) for buffer in room)
        scaled.zero_().view(-1)[places[start:end] - _first_component(layout, batch)] = votes[start:end]
        rate = rates[: layout.matrix_tiles] if batch.is_matrix else rates[layout.matrix_tiles :]
        rate = rate[batch.tiles].view(-1, *[1] * (len(shape) - 1))
        if merged.scales is not None:
            change = displacements(scaled, demo.transform, rate, other)
        elif demo.magnitude == "clipped":
            change = clipped(scaled, demo.transform, learning_rate, other)
        else:
            change = directions(scaled, demo.transform, step, other)
            torch.copysign(rate, change, out=change)
        for part in batch.parts:
            _step_band(tensors[part.tensor.name], part, change, decay)


def _shape(batch: Batch) -> torch.Size:
    tiles = batch.tiles.stop - batch.tiles.start
    return torch.Size((tiles, TILE_EDGE, TILE_EDGE) if batch.is_matrix else (tiles, TILE_EDGE))


def _first_component(layout: TileLayout, batch: Batch) -> int:
    first: int = batch.tiles.start
    return first * MATRIX_COMPONENTS if batch.is_matrix else layout.matrix_components + first * VECTOR_COMPONENTS


def _tile_rates(merged: Merged, tile: Tensor, tiles: int, learning_rate: float) -> tuple[Tensor, Tensor]:
    """V' of the merged votes, float32 [n], and what each of `tiles` steps by, float32: η, or its scale. A tile without
    votes steps by zero, which changes no bit. tile: int64 [n], ascending, which of them each belongs to."""
    values = torch.from_numpy(merged.values).to(tile.device)
    if merged.scales is None:
        votes, stepped = scale_votes(values, tile, tiles)
        return votes.float(), torch.where(stepped, torch.tensor(learning_rate, device=tile.device), 0.0)
    rates = torch.zeros(tiles, device=tile.device)
    rates[torch.unique_consecutive(tile)] = torch.from_numpy(merged.scales).to(tile.device)
    return values.float(), rates


def _step_band(tensor: Tensor, part: Part, change: Tensor, decay: float) -> None:
    theta = part.band(tensor)
    if decay != 1.0:
        theta.mul_(decay)
        flush_subnormals(theta)
    for of_theta, of_change in part.pieces(theta, change):
        of_theta.sub_(of_change)
    flush_subnormals(theta)


def flush_subnormals(tensor: Tensor) -> None:
    """Replace zeros of either sign and subnormals by +0, so that machines that flush them and others agree."""
    torch.ops.aten.hardshrink.out(tensor, LARGEST_SUBNORMAL, out=tensor)  # x where |x| > LARGEST_SUBNORMAL, else +0
