"""A range of tiles, for ranks that share one tile space: each rank owns the tiles of its range, and no other's.

The ranges of all ranks follow on each other, so what the ranks extract is, joined in the order of the ranks, what one
process would extract, and their coefficients are, joined, its buffer. The tensors of a range are the rectangles that
its tiles consist of: parameter 3 may have the pieces 3.0, 3.1 and 3.2, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from thinwire.compression.sent import Sent, WholeSent
from thinwire_proto.contract import Parameter
from thinwire_proto.exact.fingerprint import Piece
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, Part, TileLayout
from thinwire_proto.exact.votes import Levels, Merged


class TileRange:
    """tiles: of `whole`, whose matrix tiles come first.

    layout: of the range's own tensors, in its own tile space. components: its part of the whole tile space."""

    def __init__(self, whole: TileLayout, tiles: range) -> None:
        self.tiles = tiles
        self._whole = whole
        self._parts = list(whole.parts(tiles))
        # with as many dimensions as the tensor: a rule takes matrices, but not convolutions
        shapes = (
            ([part.rows.stop - part.rows.start] if part.tensor.is_matrix else [])
            + [part.columns.stop - part.columns.start]
            + [1] * (len(part.tensor.shape) - 2)
            for part in self._parts
        )
        names = (f"{part.tensor.name}.{number}" for number, part in enumerate(self._parts))
        self.layout = TileLayout(
            [Parameter(name=name, shape=tuple(shape)) for name, shape in zip(names, shapes, strict=True)]
        )
        first, stop = (_component(whole, tile) for tile in (tiles.start, tiles.stop))
        self.components = slice(first, stop)

    def cut(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy the range's part of whole tensors, of all or of some: flat, in the order of the range."""
        bands = [band.reshape(-1) for band in self.bands(tensors)]
        device = next((one.device for one in tensors.values()), None)
        return torch.cat(bands) if bands else torch.empty(0, dtype=torch.float32, device=device)

    def bands(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """The places of the range's tensors in whole ones, as views."""
        for part in self._parts:
            if part.tensor.name in tensors:
                yield part.band(tensors[part.tensor.name])

    def put(self, flat: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write what `cut` returns into whole tensors."""
        bands = list(self.bands(tensors))
        for band, piece in zip(bands, flat.split_with_sizes([band.numel() for band in bands]), strict=True):
            band.copy_(piece.view(band.shape))

    def pieces(self, flat: Tensor) -> Iterator[Piece]:
        """What `cut` returns, in pieces for a fingerprint of the whole tensors, of which it has a part."""
        numbers = {tensor.name: number for number, tensor in enumerate(self._whole.tensors)}
        for part, values in zip(self._parts, self.layout.unflattened(flat).values(), strict=True):
            number, width = numbers[part.tensor.name], part.tensor.columns
            first = part.rows.start * width + part.columns.start
            if part.columns.stop - part.columns.start == width:
                yield number, first, values
            else:
                yield from ((number, first + row * width, one) for row, one in enumerate(values))

    def among(self, names: Collection[str]) -> list[tuple[str, Part]]:
        """The range's tensors that are parts of these whole ones: their names, and their places in them."""
        pieces = zip((tensor.name for tensor in self.layout.tensors), self._parts, strict=True)
        return [(piece, part) for piece, part in pieces if part.tensor.name in names]

    def of_sent(self, sent: Sent) -> Sent:
        """The range's part of an extraction from the whole, in the range's own tile space."""
        first, stop = self.components.start, self.components.stop
        if isinstance(sent, WholeSent):
            sizes = sent.sizes[self.tiles.start : self.tiles.stop]
            return WholeSent(sent.signs[first:stop], sizes, sent.extraction, levels=sent.levels)
        edges = torch.tensor([first, stop], device=sent.components.device)
        start, end = torch.searchsorted(sent.components, edges).tolist()
        return Sent(sent.components[start:end] - first, sent.values[start:end], sent.extraction)

    def of_merged(self, merged: Merged | Levels) -> Merged | Levels:
        """The range's part of an update, in the range's own tile space."""
        first, stop = self.components.start, self.components.stop
        if isinstance(merged, Levels):
            scales = merged.scales[self.tiles.start : self.tiles.stop]
            return Levels(merged.levels, merged.values[first:stop], scales)
        start, end = np.searchsorted(merged.components, [first, stop])
        scales_of = None
        if merged.scales is not None:  # one for each tile that has votes
            voted = np.unique(self._whole.tile_of(merged.components))
            of_range = slice(*np.searchsorted(voted, [self.tiles.start, self.tiles.stop]))
            scales_of = merged.scales[of_range]
        return Merged(merged.components[start:end] - first, merged.values[start:end], scales_of)


def tile_ranges(whole: TileLayout, ranks: int, undivided: Collection[str] = ()) -> list[TileRange]:
    """The ranges of all ranks. Each has as many components as another, within a tile; one may be empty. undivided:
    names of matrices that are in one range each, so that ranges may differ by as much as the largest of them."""
    edges = [_tile(whole, whole.components * rank // ranks) for rank in range(ranks)] + [whole.tiles]
    for tensor in whole.tensors:
        if tensor.name in undivided:
            first, stop = tensor.first_tile, tensor.first_tile + tensor.tiles
            edges = [edge if edge <= first or edge >= stop else _nearer(first, stop, edge) for edge in edges]
    return [TileRange(whole, range(*pair)) for pair in pairwise(edges)]


def _nearer(first: int, stop: int, edge: int) -> int:
    return first if edge - first < stop - edge else stop


def joined(parts: Sequence[Sent]) -> Sent:
    """Join what all ranks have extracted, in the whole tile space. parts: in the order of the ranges, each with its
    components moved to the whole already; see `moved`."""
    codes_of = [part.codes for part in parts if part.codes is not None]
    codes = torch.cat(codes_of) if codes_of else None
    first = parts[0]
    if isinstance(first, WholeSent):
        wholes = [part for part in parts if isinstance(part, WholeSent)]
        signs, sizes = torch.cat([part.signs for part in wholes]), torch.cat([part.sizes for part in wholes])
        return WholeSent(signs, sizes, first.extraction, codes, first.levels)
    components = torch.cat([part.components for part in parts])
    return Sent(components, torch.cat([part.values for part in parts]), first.extraction, codes)


def moved(sent: Sent, to: TileRange) -> Sent:
    """An extraction of a range, with its components in the whole tile space."""
    if isinstance(sent, WholeSent):
        return sent
    return Sent(sent.components + to.components.start, sent.values, sent.extraction, sent.codes)


def _tile(layout: TileLayout, component: int) -> int:
    """The tile that has a component of the tile space."""
    if component < layout.matrix_components:
        return component // MATRIX_COMPONENTS
    return layout.matrix_tiles + (component - layout.matrix_components) // VECTOR_COMPONENTS


def _component(layout: TileLayout, tile: int) -> int:
    """The first component of a tile."""
    vectors = max(0, tile - layout.matrix_tiles)
    return min(tile, layout.matrix_tiles) * MATRIX_COMPONENTS + vectors * VECTOR_COMPONENTS
