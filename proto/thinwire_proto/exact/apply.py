"""Exact application of merged votes to parameters, for a replica or for the optimizer of a training script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.batch_pool import process_batches
from thinwire_proto.contract import TILE_EDGE, DemoSpec
from thinwire_proto.exact.decode import (
    clipped,
    directions,
    displacements,
    level_factor,
    pinned_precision,
    scale_votes,
    tile_batch,
)
from thinwire_proto.exact.tiles import (
    MATRIX_SHIFT,
    VECTOR_SHIFT,
    Batch,
    TileLayout,
)
from thinwire_proto.exact.votes import Levels, Merged

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
LARGEST_SUBNORMAL = SMALLEST_NORMAL - 2.0**-149


@torch.no_grad()
def apply_votes(
    tensors: Mapping[str, Tensor],
    merged: Merged | Levels,
    layout: TileLayout,
    demo: DemoSpec,
    *,
    learning_rate: float,
    decay: float,
    step: int,
    changes: Mapping[str, Tensor] | None = None,
) -> None:
    """Apply one update: θ ← θ·c, then θ ← θ − change.

    The change is η·sign(X), or its clipped form (see `decode`), or S·X with magnitudes. The two operations are rounded
    separately and never fused. Subnormal results become zero.

    tensors: θ_step, float32 by the layout's names, contiguous, on one device; changed in place. learning_rate and
    decay: η and c, float32 numbers that are equal on all replicas. changes: tensors of the layout that are not in
    `tensors`; they get their changes, for `subtract_change`.
    """
    if not layout.tensors:
        return
    all_tensors = {**tensors, **(changes or {})}
    device = all_tensors[layout.tensors[0].name].device

    def subtract(batch: Batch, change: Tensor) -> None:
        for part in batch.parts:
            band = part.band(all_tensors[part.tensor.name])
            if part.tensor.name not in tensors:
                for band_piece, change_piece in part.pieces(band, change):
                    band_piece.copy_(change_piece)
                continue
            shrink(band, decay)
            for theta_piece, change_piece in part.pieces(band, change):
                theta_piece.sub_(change_piece)
            flush_subnormals(band)

    decode_changes(subtract, merged, layout, demo, learning_rate=learning_rate, step=step, device=device)


def decode_gradients(
    merged: Merged | Levels, layout: TileLayout, demo: DemoSpec, *, step: int, device: torch.device
) -> dict[str, Tensor]:
    """The tensors that merged votes with magnitudes stand for, float32 by the layout's names, in its shapes."""
    found = {tensor.name: torch.empty(tensor.shape, dtype=torch.float32, device=device) for tensor in layout.tensors}

    def copy(batch: Batch, change: Tensor) -> None:
        for part in batch.parts:
            for of_tensor, of_tiles in part.pieces(part.band(found[part.tensor.name]), change):
                of_tensor.copy_(of_tiles)

    decode_changes(copy, merged, layout, demo, learning_rate=0.0, step=step, device=device)
    return found


def decode_changes(
    use: Callable[[Batch, Tensor], None],
    merged: Merged | Levels,
    layout: TileLayout,
    demo: DemoSpec,
    *,
    learning_rate: float,
    step: int,
    device: torch.device,
) -> None:
    """Pass what merged votes subtract from the parameters to `use`, one batch of tiles at a time.

    Each change is float32 [n, 64, 64] or [n, 64]. Its memory is reused afterwards. On a CPU, several threads call `use`
    for different batches, in any order.
    """
    if isinstance(merged, Levels):
        _decode_levels(use, merged, layout, device)
        return
    batches = layout.batches(tile_batch(device))
    positions, values = (torch.from_numpy(of_all).to(device) for of_all in (merged.components, merged.values))
    scales = _scale_of_tiles(merged, layout, device)
    starts = np.searchsorted(merged.components, [_first_component(layout, batch) for batch in batches]).tolist()
    buffers = _Buffers(batches, device)

    def decode(item: tuple[Batch, int, int], slot: int) -> None:
        batch, start, end = item
        scaled, other = buffers.of(batch, slot)
        position = positions[start:end] - _first_component(layout, batch)
        each = [1] * (scaled.dim() - 1)
        if scales is not None:
            scaled.zero_().view(-1).scatter_(0, position, values[start:end].float())
            use(batch, displacements(scaled, _of_batch(scales, batch, layout), other))
            return
        tile = position >> (MATRIX_SHIFT if batch.is_matrix else VECTOR_SHIFT)
        votes, stepped = scale_votes(values[start:end], tile, len(scaled))
        scaled.zero_().view(-1).scatter_(0, position, votes)
        if demo.magnitude == "clipped":
            use(batch, clipped(scaled, learning_rate, other))
            return
        change = directions(scaled, step, other)
        # a tile without votes has step size zero, which changes no bit
        rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
        rate = torch.where(stepped, rate, 0.0).view(-1, *each)
        use(batch, torch.copysign(rate, change, out=change))

    with pinned_precision():
        process_batches(decode, zip(batches, starts, [*starts[1:], len(positions)], strict=True), device)


def _decode_levels(
    use: Callable[[Batch, Tensor], None], merged: Levels, layout: TileLayout, device: torch.device
) -> None:
    """`decode_changes` for an update in levels."""
    batches = layout.batches(tile_batch(device))
    values, scales = (torch.from_numpy(of_all).to(device) for of_all in (merged.values, merged.scales))
    buffers, factor = _Buffers(batches, device), level_factor(merged.levels)

    def decode(batch: Batch, slot: int) -> None:
        scaled, other = buffers.of(batch, slot)
        first = _first_component(layout, batch)
        scaled.copy_(values[first : first + scaled.numel()].view(scaled.shape)).mul_(factor)
        use(batch, displacements(scaled, _of_batch(scales, batch, layout), other))

    with pinned_precision():
        process_batches(decode, batches, device)


class _Buffers:
    """Two scratch tensors for each thread that decodes batches."""

    def __init__(self, batches: Sequence[Batch], device: torch.device) -> None:
        self._size_max = max(_shape(batch).numel() for batch in batches)
        self._device = device
        self._of_slot: dict[int, Tensor] = {}

    def of(self, batch: Batch, slot: int) -> tuple[Tensor, Tensor]:
        """float32, in the shape of the batch; not cleared."""
        if slot not in self._of_slot:
            self._of_slot[slot] = torch.empty(2, self._size_max, dtype=torch.float32, device=self._device)
        shape = _shape(batch)
        first, second = (buffer[: shape.numel()].view(shape) for buffer in self._of_slot[slot])
        return first, second


def _of_batch(scales: Tensor, batch: Batch, layout: TileLayout) -> Tensor:
    """The scales of a batch's tiles, [n, 1, 1] or [n, 1]. scales: of all tiles."""
    of_kind = scales[: layout.matrix_tiles] if batch.is_matrix else scales[layout.matrix_tiles :]
    return of_kind[batch.tiles].view(-1, *[1] * (2 if batch.is_matrix else 1))


def _shape(batch: Batch) -> torch.Size:
    tiles = batch.tiles.stop - batch.tiles.start
    return torch.Size((tiles, TILE_EDGE, TILE_EDGE) if batch.is_matrix else (tiles, TILE_EDGE))


def _first_component(layout: TileLayout, batch: Batch) -> int:
    return layout.first_component(batch.tiles.start + (0 if batch.is_matrix else layout.matrix_tiles))


def _scale_of_tiles(merged: Merged, layout: TileLayout, device: torch.device) -> Tensor | None:
    """The scale of each tile, float32 [tiles]; 0 in a tile without votes. None without magnitudes."""
    if merged.scales is None:
        return None
    with_votes = np.zeros(layout.tiles, np.bool_)
    with_votes[layout.tile_of(merged.components)] = True
    scales = np.zeros(layout.tiles, np.float32)
    scales[with_votes] = merged.scales
    return torch.from_numpy(scales).to(device)


def subtract_change(theta: Tensor, change: Tensor, decay: float) -> None:
    """Step a part of a tensor by its part of the changes that `apply_votes` has handed out."""
    shrink(theta, decay)
    theta.sub_(change)
    flush_subnormals(theta)


def shrink(theta: Tensor, decay: float) -> None:
    """θ ← θ·c, in place."""
    if decay != 1.0:
        theta.mul_(decay)
        flush_subnormals(theta)


def flush_subnormals(tensor: Tensor) -> None:
    """Replace zeros of either sign and subnormals by +0, because some machines flush subnormals and others do not."""
    torch.ops.aten.hardshrink.out(tensor, LARGEST_SUBNORMAL, out=tensor)  # x where |x| > LARGEST_SUBNORMAL, else +0
