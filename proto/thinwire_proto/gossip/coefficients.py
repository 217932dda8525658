"""Coefficients of a flat difference, tile by tile, and back: the batches of `exact.tiles` over one flat buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from thinwire_proto.batch_pool import process_batches
from thinwire_proto.contract import TILE_EDGE
from thinwire_proto.exact.decode import tile_batch
from thinwire_proto.exact.tiles import Batch, TileLayout
from thinwire_proto.exact.transform import forward
from thinwire_proto.gossip.codec import tensors_of

Result = TypeVar("Result")


def shape_of(batch: Batch) -> torch.Size:
    tiles = batch.tiles.stop - batch.tiles.start
    return torch.Size((tiles, TILE_EDGE, TILE_EDGE) if batch.is_matrix else (tiles, TILE_EDGE))


def tiles_of(batch: Batch, layout: TileLayout) -> slice:
    """The batch's tiles in the layout's numbering, matrix tiles first."""
    first = 0 if batch.is_matrix else layout.matrix_tiles
    return slice(first + batch.tiles.start, first + batch.tiles.stop)


def map_coefficients(encode: Callable[[Batch, Tensor], Result], flat: Tensor, layout: TileLayout) -> list[Result]:
    """Encode the orthonormal coefficients of a flat difference, a batch at a time, float32 [n, 64, 64] or [n, 64].
    Returns the results in the batches' order.

    On a CPU, several threads call `encode`, in any order.
    """
    named = dict(zip((tensor.name for tensor in layout.tensors), tensors_of(flat, layout), strict=True))

    def transform(batch: Batch, slot: int) -> Result:
        tiles = torch.zeros(shape_of(batch), device=flat.device)
        for part in batch.parts:
            for band, piece in part.pieces(part.band(named[part.tensor.name]), tiles):
                piece.copy_(band)
        return encode(batch, forward(tiles))

    return process_batches(transform, layout.batches(tile_batch(flat.device)), flat.device)


class Step:
    """A flat step that is put together from batches of tiles. flat: float32 [layout.parameters]."""

    def __init__(self, layout: TileLayout, device: torch.device) -> None:
        self.flat = torch.empty(layout.parameters, device=device)
        names = (tensor.name for tensor in layout.tensors)
        self._named = dict(zip(names, tensors_of(self.flat, layout), strict=True))

    def put(self, batch: Batch, tiles: Tensor) -> None:
        for part in batch.parts:
            for band, piece in part.pieces(part.band(self._named[part.tensor.name]), tiles):
                band.copy_(piece)
