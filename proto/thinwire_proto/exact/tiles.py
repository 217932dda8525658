"""Tile space: all trained parameters, divided into tiles with one flat numbering.

A matrix (first dimension × the rest) is padded with zeros to multiples of 64 and split into 64×64 tiles. A vector is
padded and split into rows of 64. All matrix tiles come first, in the manifest's order and row by row; all vector tiles
follow. So each component (one transform coefficient of a tile) has one flat number, and the momentum is one flat
buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np
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
    """The position of one tensor in tile space."""

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
    """A band of a tensor inside a batch: its rows and columns, and its tiles as numbered in the batch."""

    tensor: TensorTiles
    rows: slice
    columns: slice
    tiles: slice

    def band(self, values: Tensor) -> Tensor:
        """The band of a tensor of `tensor.shape`, as a view: [rows, columns] of a matrix, [columns] of a vector."""
        if self.is_whole:
            return values.view(self.tensor.rows, self.tensor.columns) if self.tensor.is_matrix else values.view(-1)
        if self.tensor.is_matrix:
            return values.view(self.tensor.rows, self.tensor.columns)[self.rows, self.columns]
        return values.view(self.tensor.columns)[self.columns]

    @cached_property
    def is_whole(self) -> bool:
        """Whether it is the whole tensor, as most parts are."""
        rows, columns = (side.stop - side.start for side in (self.rows, self.columns))
        return bool(rows == self.tensor.rows and columns == self.tensor.columns)

    @cached_property
    def is_padded(self) -> bool:
        """Whether any of its tiles is partly padding."""
        rows, columns = (side.stop - side.start for side in (self.rows, self.columns))
        return columns % TILE_EDGE != 0 or (self.tensor.is_matrix and rows % TILE_EDGE != 0)

    def pieces(self, band: Tensor, tiles: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield matching views of a band and of the batch's tiles [n, 64, 64] or [n, 64], equal in shape, without
        padding."""
        if not self.tensor.is_matrix:
            yield band, tiles[self.tiles].view(-1)[: len(band)]
            return
        rows, columns = band.shape
        # [tile rows, tile columns, 64, 64] seen as the padded matrix [tile rows, 64, tile columns, 64]
        grid = tiles[self.tiles].view(-1, _tiles_across(columns), TILE_EDGE, TILE_EDGE).transpose(1, 2)
        if not self.is_padded:  # each view costs as much as a small operation
            yield band.view(grid.shape), grid
            return
        for row, row_count, height in _full_and_rest(rows):
            for column, column_count, width in _full_and_rest(columns):
                part = band.narrow(0, row * TILE_EDGE, row_count * height)
                part = part.narrow(1, column * TILE_EDGE, column_count * width)
                yield (
                    part.view(row_count, height, column_count, width),
                    grid[row : row + row_count, :height, column : column + column_count, :width],
                )


@dataclass(frozen=True)
class Batch:
    """Adjacent tiles of one kind, and the bands of tensors that they cover."""

    is_matrix: bool
    tiles: slice  # numbered among the tiles of this kind
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

    def selected_max(self, k: int) -> int:
        """Upper bound on the components of one contribution: k a tile, limited by the size of the tile."""
        return self.matrix_tiles * min(k, MATRIX_COMPONENTS) + self.vector_tiles * min(k, VECTOR_COMPONENTS)

    def first_component(self, tile: int) -> int:
        """The first flat component of a tile, 0 … `tiles`; of the last plus one, `components`."""
        vectors = max(0, tile - self.matrix_tiles)
        return (tile - vectors) * MATRIX_COMPONENTS + vectors * VECTOR_COMPONENTS

    def tile_of(self, components: np.ndarray) -> np.ndarray:
        """The tile number (matrix tiles first) of each flat component; int64 to int64, same shape."""
        return np.where(
            components < self.matrix_components,
            components >> MATRIX_SHIFT,
            self.matrix_tiles + ((components - self.matrix_components) >> VECTOR_SHIFT),
        )

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
        """Add `scale` times a tensor of `tensor.shape` to its tiles in a flat buffer [components]. Leaves the padding
        unchanged."""
        kind = self.matrices(flat) if tensor.is_matrix else self.vectors(flat)
        for part in self._bands(tensor, tensor.tiles):
            for tensor_piece, tiles_piece in part.pieces(part.band(values), kind):
                tiles_piece.add_(tensor_piece, alpha=scale)

    def unflattened(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors, by name, as views of a flat buffer that holds all parameters in this order, without padding."""
        sizes = [tensor.rows * tensor.columns for tensor in self.tensors]
        parts = zip(self.tensors, flat.split_with_sizes(sizes), strict=True)
        return {tensor.name: part.view(tensor.shape) for tensor, part in parts}

    def batches(self, tiles_max: int) -> tuple[Batch, ...]:
        """All tiles in batches of at most `tiles_max` matrix tiles, or vector tiles with as many components.

        Batches let one operation process many small tensors at once.
        """
        if tiles_max not in self._batches:
            self._batches[tiles_max] = tuple(self._make_batches(tiles_max))
        return self._batches[tiles_max]

    def _make_batches(self, tiles_max: int) -> list[Batch]:
        parts: list[list[Part]] = []
        for is_matrix, tiles_in_batch in ((True, tiles_max), (False, tiles_max * TILE_EDGE)):
            batch: list[Part] = []
            for part in (part for tensor in self.tensors for part in self._bands(tensor, tiles_in_batch)):
                if part.tensor.is_matrix != is_matrix:
                    continue
                if not batch or part.tiles.stop - batch[0].tiles.start > tiles_in_batch:
                    batch = []
                    parts.append(batch)
                batch.append(part)
        return [_batch_of(batch) for batch in parts]

    def parts(self, tiles: range) -> Iterator[Part]:
        """The rectangles of tensors that a range of tiles consists of (matrix tiles first), tensor by tensor: at most
        the rest of a tile row, whole tile rows, and the beginning of one. Their tiles are numbered among their kind."""
        for tensor in self.tensors:
            first = tensor.first_tile + (0 if tensor.is_matrix else self.matrix_tiles)
            start, stop = max(tiles.start - first, 0), min(tiles.stop - first, tensor.tiles)
            if start >= stop:
                continue
            (row, column), (last_row, last_column) = (divmod(tile, tensor.tile_columns) for tile in (start, stop))
            if row == last_row:
                yield _part_of(tensor, range(row, row + 1), range(column, last_column))
                continue
            if column:
                yield _part_of(tensor, range(row, row + 1), range(column, tensor.tile_columns))
                row += 1
            if row < last_row:
                yield _part_of(tensor, range(row, last_row), range(tensor.tile_columns))
            if last_column:
                yield _part_of(tensor, range(last_row, last_row + 1), range(last_column))

    def _bands(self, tensor: TensorTiles, tiles_max: int) -> Iterator[Part]:
        """Split a tensor into bands of at most `tiles_max` tiles: whole tile rows, or parts of a row that is longer
        than that.

        The tiles of a band are numbered among all tiles of their kind.
        """
        rows_max, columns_max = max(1, tiles_max // tensor.tile_columns), min(tiles_max, tensor.tile_columns)
        for row in range(0, tensor.tile_rows, rows_max):
            for column in range(0, tensor.tile_columns, columns_max):
                rows = range(row, min(row + rows_max, tensor.tile_rows))
                yield _part_of(tensor, rows, range(column, min(column + columns_max, tensor.tile_columns)))


def _part_of(tensor: TensorTiles, tile_rows: range, tile_columns: range) -> Part:
    """A rectangle of tiles that follow on each other: whole tile rows, or some tiles of one."""
    start = tensor.first_tile + tile_rows.start * tensor.tile_columns + tile_columns.start
    return Part(
        tensor,
        slice(tile_rows.start * TILE_EDGE, min(tile_rows.stop * TILE_EDGE, tensor.rows)),
        slice(tile_columns.start * TILE_EDGE, min(tile_columns.stop * TILE_EDGE, tensor.columns)),
        slice(start, start + len(tile_rows) * len(tile_columns)),
    )


@lru_cache(maxsize=8)
def layout_of(parameters: tuple[Parameter, ...]) -> TileLayout:
    """The tile space of a manifest, cached."""
    return TileLayout(parameters)


def _batch_of(parts: Sequence[Part]) -> Batch:
    """Make a batch of adjacent parts, and renumber their tiles from the start of the batch."""
    first, last = parts[0].tiles.start, parts[-1].tiles.stop
    moved = tuple(replace(part, tiles=slice(part.tiles.start - first, part.tiles.stop - first)) for part in parts)
    return Batch(parts[0].tensor.is_matrix, slice(first, last), moved)


def _full_and_rest(size: int) -> Iterator[tuple[int, int, int]]:
    """Split one dimension into (first tile, number of tiles, size of each without padding)."""
    if size >= TILE_EDGE:
        yield 0, size // TILE_EDGE, TILE_EDGE
    if size % TILE_EDGE:
        yield size // TILE_EDGE, 1, size % TILE_EDGE
