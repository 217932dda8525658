"""Tile space: every trained parameter, cut into tiles, under one flat numbering.

A matrix (first dimension × the rest) is padded with zeros to multiples of 64 and cut into 64×64 tiles; a vector is
padded and cut into rows of 64 (design section 3.1). All matrix tiles come first, in the manifest's order and row by
row, then all vector tiles. So a component (one transform coefficient of a tile) has one flat number, and the momentum
is one flat buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.contract import TILE_EDGE, Parameter

MATRIX_COMPONENTS = TILE_EDGE * TILE_EDGE
VECTOR_COMPONENTS = TILE_EDGE
MATRIX_SHIFT = 12  # log2 of MATRIX_COMPONENTS
VECTOR_SHIFT = 6


def _tiles_across(size: int) -> int:
    return -(-size // TILE_EDGE)


@dataclass(frozen=True)
class TensorTiles:
    """Where one tensor lies in tile space."""

    name: str
    shape: tuple[int, ...]
    rows: int  # of the tensor seen as a matrix; 1 for a vector
    columns: int
    is_matrix: bool
    first_tile: int  # among the tiles of its kind

    @property
    def tile_rows(self) -> int:
        return _tiles_across(self.rows) if self.is_matrix else 1

    @property
    def tile_columns(self) -> int:
        return _tiles_across(self.columns)

    @property
    def tiles(self) -> int:
        return self.tile_rows * self.tile_columns


@dataclass(frozen=True)
class Part:
    """A band of a tensor inside a batch: its rows, and its tiles among those of the batch."""

    tensor: TensorTiles
    rows: slice
    tiles: slice


@dataclass(frozen=True)
class Batch:
    """Tiles of one kind that lie side by side in tile space, and the bands of tensors that they are."""

    is_matrix: bool
    tiles: slice  # of their kind
    parts: tuple[Part, ...]


class TileLayout:
    """The tile space of a manifest."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        tensors: list[TensorTiles] = []
        counts = {True: 0, False: 0}
        for parameter in parameters:
            shape = parameter.shape
            is_matrix = len(shape) > 1
            rows = shape[0] if is_matrix else 1
            columns = prod(shape[1:]) if is_matrix else prod(shape)
            tensors.append(TensorTiles(parameter.name, shape, rows, columns, is_matrix, counts[is_matrix]))
            counts[is_matrix] += tensors[-1].tiles
        self.tensors: tuple[TensorTiles, ...] = tuple(tensors)
        self.matrix_tiles: int = counts[True]
        self.vector_tiles: int = counts[False]
        self._batches: dict[int, tuple[Batch, ...]] = {}

    @property
    def tiles(self) -> int:
        return self.matrix_tiles + self.vector_tiles

    @property
    def matrix_components(self) -> int:
        return self.matrix_tiles * MATRIX_COMPONENTS

    @property
    def components(self) -> int:
        """Size of the tile space, padding included."""
        return self.matrix_components + self.vector_tiles * VECTOR_COMPONENTS

    @cached_property
    def parameters(self) -> int:
        """Number of trained parameters, padding not included."""
        return sum(prod(tensor.shape) for tensor in self.tensors)

    def kept_max(self, k: int) -> int:
        """The most components that one contribution can hold: k a tile, and never more than the tile has."""
        return self.matrix_tiles * min(k, MATRIX_COMPONENTS) + self.vector_tiles * min(k, VECTOR_COMPONENTS)

    def tile_of(self, components: np.ndarray) -> np.ndarray:
        """The tile number (matrix tiles first) of each flat component; int64 to int64, same shape."""
        return np.where(
            components < self.matrix_components,
            components >> MATRIX_SHIFT,
            self.matrix_tiles + ((components - self.matrix_components) >> VECTOR_SHIFT),
        )

    def in_tiles(self, tensor: TensorTiles, tiles: np.ndarray) -> np.ndarray:
        """Which elements of a tensor lie in the tiles that are meant: bool [tiles] of the whole space to bool [rows,
        columns] of a matrix, [columns] of a vector."""
        first = tensor.first_tile + (0 if tensor.is_matrix else self.matrix_tiles)
        grid = tiles[first : first + tensor.tiles].reshape(tensor.tile_rows, tensor.tile_columns)
        along = grid.repeat(TILE_EDGE, axis=1)[:, : tensor.columns]
        return along.repeat(TILE_EDGE, axis=0)[: tensor.rows] if tensor.is_matrix else along[0]

    def parameters_in(self, tiles: np.ndarray) -> int:
        """How many parameters, padding not included, lie in the tiles that are meant, bool [tiles]."""
        if tiles.all():
            return self.parameters
        return sum(int(np.count_nonzero(self.in_tiles(tensor, tiles))) for tensor in self.tensors)

    def matrices(self, flat: Tensor) -> Tensor:
        """The matrix tiles of a flat buffer [components], as a view [matrix_tiles, 64, 64]."""
        return flat[: self.matrix_components].view(-1, TILE_EDGE, TILE_EDGE)

    def vectors(self, flat: Tensor) -> Tensor:
        """The vector tiles of a flat buffer [components], as a view [vector_tiles, 64]."""
        return flat[self.matrix_components :].view(-1, TILE_EDGE)

    def tiles_of(self, flat: Tensor, tensor: TensorTiles) -> Tensor:
        """The tiles of one tensor in a flat buffer [components], as a view [tiles, 64, 64] or [tiles, 64]."""
        kind = self.matrices(flat) if tensor.is_matrix else self.vectors(flat)
        return kind[tensor.first_tile : tensor.first_tile + tensor.tiles]

    def add_into(self, flat: Tensor, tensor: TensorTiles, values: Tensor, scale: float = 1.0) -> None:
        """Add `scale` times a tensor of `tensor.shape` to its tiles in a flat buffer [components]; the padding is left
        alone."""
        for band, tiles in self.bands(tensor, tensor.tile_rows):
            part = band_of(values, tensor, band)
            if tensor.is_matrix:
                # [tile rows, tile columns, 64, 64] seen as the padded matrix [tile rows, 64, tile columns, 64]
                grid = self.matrices(flat)[tiles].view(-1, tensor.tile_columns, TILE_EDGE, TILE_EDGE).transpose(1, 2)
                pad_rows, pad_columns = -part.shape[0] % TILE_EDGE, -part.shape[1] % TILE_EDGE
                if pad_rows or pad_columns:
                    part = torch.nn.functional.pad(part, (0, pad_columns, 0, pad_rows))
                grid.add_(part.view(grid.shape), alpha=scale)
            else:
                self.vectors(flat)[tiles].view(-1)[: tensor.columns].add_(part, alpha=scale)

    def batches(self, tiles_max: int) -> tuple[Batch, ...]:
        """All tiles in batches of at most `tiles_max`, or of one tile row where that is longer: what is done to many
        small tensors is done to all of them at once."""
        if tiles_max not in self._batches:
            self._batches[tiles_max] = tuple(self._make_batches(tiles_max))
        return self._batches[tiles_max]

    def numbers_of(self, batch: Batch) -> slice:
        """The numbers of a batch's tiles in the whole space."""
        first = 0 if batch.is_matrix else self.matrix_tiles
        return slice(first + batch.tiles.start, first + batch.tiles.stop)

    def tiles_of_batch(self, flat: Tensor, batch: Batch) -> Tensor:
        """The tiles of a batch in a flat buffer [components], as a view [tiles, 64, 64] or [tiles, 64]."""
        return (self.matrices(flat) if batch.is_matrix else self.vectors(flat))[batch.tiles]

    def _make_batches(self, tiles_max: int) -> list[Batch]:
        batches: list[Batch] = []
        for tensor in self.tensors:
            for rows, tiles in self.bands(tensor, max(1, tiles_max // tensor.tile_columns)):
                last = next((batch for batch in reversed(batches) if batch.is_matrix == tensor.is_matrix), None)
                if last is None or tiles.stop - last.tiles.start > tiles_max:
                    part = Part(tensor, rows, slice(0, tiles.stop - tiles.start))
                    batches.append(Batch(tensor.is_matrix, tiles, (part,)))
                else:
                    start = last.tiles.start
                    part = Part(tensor, rows, slice(tiles.start - start, tiles.stop - start))
                    batches[batches.index(last)] = Batch(
                        tensor.is_matrix, slice(start, tiles.stop), (*last.parts, part)
                    )
        return batches

    def bands(self, tensor: TensorTiles, tile_rows_max: int) -> Iterator[tuple[slice, slice]]:
        """Cut a tensor into bands of whole tile rows: (rows of the matrix, tiles of its kind) for each."""
        if not tensor.is_matrix:
            yield slice(0, 1), slice(tensor.first_tile, tensor.first_tile + tensor.tiles)
            return
        for first in range(0, tensor.tile_rows, tile_rows_max):
            last = min(first + tile_rows_max, tensor.tile_rows)
            start = tensor.first_tile
            yield (
                slice(first * TILE_EDGE, min(last * TILE_EDGE, tensor.rows)),
                slice(start + first * tensor.tile_columns, start + last * tensor.tile_columns),
            )


@lru_cache(maxsize=8)
def layout_of(parameters: tuple[Parameter, ...]) -> TileLayout:
    """The tile space of a manifest, made once."""
    return TileLayout(parameters)


def band_of(values: Tensor, tensor: TensorTiles, band: slice) -> Tensor:
    """A band of a tensor of `tensor.shape`, as a view: [rows, columns] of a matrix, [columns] of a vector."""
    if tensor.is_matrix:
        return values.view(tensor.rows, tensor.columns)[band]
    return values.view(tensor.columns)


def untile(tiles: Tensor, tensor: TensorTiles, rows: int) -> Tensor:
    """Put the tiles of a band together and drop the padding: [rows, columns] of a matrix, [columns] of a vector."""
    if not tensor.is_matrix:
        return tiles.reshape(-1)[: tensor.columns]
    grid = tiles.view(-1, tensor.tile_columns, TILE_EDGE, TILE_EDGE).transpose(1, 2)
    return grid.reshape(-1, tensor.tile_columns * TILE_EDGE)[:rows, : tensor.columns]
