"""The tile space of all nodes of a swarm together, so that a card processes them in one launch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from thinwire_proto.contract import TILE_EDGE, Parameter
from thinwire_proto.exact.tiles import (
    MATRIX_COMPONENTS,
    MATRIX_SHIFT,
    VECTOR_COMPONENTS,
    VECTOR_SHIFT,
    TensorTiles,
    TileLayout,
)


class StackedLayout:
    """The tile space of all nodes together, and its map to the model's.

    whole: its layout. For each tensor of the model it has one of the same name, with the nodes' tensors one below the
    other. Components are numbered as in `TileLayout`. model: the model's layout.
    """

    def __init__(self, model: TileLayout, nodes: int, device: torch.device) -> None:
        self.model, self._nodes = model, nodes
        self.whole = TileLayout([Parameter(name=tensor.name, shape=self._shape(tensor)) for tensor in model.tensors])
        tiles: dict[bool, list[Tensor]] = {True: [], False: []}
        owners: dict[bool, list[Tensor]] = {True: [], False: []}
        for tensor in model.tensors:
            tiles[tensor.is_matrix].append((tensor.first_tile + torch.arange(tensor.tiles)).repeat(nodes))
            owners[tensor.is_matrix].append(torch.arange(nodes).repeat_interleave(tensor.tiles))
        none = torch.zeros(0, dtype=torch.int64)
        self._node = torch.cat([none, *owners[True], *owners[False]]).to(device)
        size, vectors = model.matrix_components, torch.cat([none, *tiles[False]])
        self._first = torch.cat(  # the component of the model that the first component of a tile is
            [none, torch.cat([none, *tiles[True]]) * MATRIX_COMPONENTS, size + vectors * VECTOR_COMPONENTS]
        ).to(device)

    def _shape(self, tensor: TensorTiles) -> tuple[int, ...]:
        """The shape of all nodes' tensors, each padded at its end to whole tiles."""
        if not tensor.is_matrix:
            return (self._nodes * tensor.tile_columns * TILE_EDGE,)
        return self._nodes * tensor.tile_rows * TILE_EDGE, tensor.columns

    def stacked(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors [nodes, *shape] as tensors of the whole layout, contiguous."""
        found = {}
        for ours, tensor in zip(self.whole.tensors, self.model.tensors, strict=True):
            rows = gradients[tensor.name].reshape(self._nodes, -1, tensor.columns if tensor.is_matrix else 1)
            padding = ours.shape[0] // self._nodes - rows.shape[1]
            padded = F.pad(rows, (0, 0, 0, padding)) if padding else rows
            found[tensor.name] = padded.reshape(ours.shape).contiguous()
        return found

    def of_each(self, flat: Tensor) -> Tensor:
        """A tensor [components] or [tiles] of the whole layout as one of each node: [nodes, components] or [nodes,
        tiles] of the model's layout."""
        matrix_size, vector_size = 1, 1
        if len(flat) != self.whole.tiles:
            assert len(flat) == self.whole.components
            matrix_size, vector_size = MATRIX_COMPONENTS, VECTOR_COMPONENTS
        split = self.whole.matrix_tiles * matrix_size
        parts: dict[bool, list[Tensor]] = {True: [], False: []}
        for tensor in self.whole.tensors:
            size, first = (matrix_size, 0) if tensor.is_matrix else (vector_size, split)
            start = first + tensor.first_tile * size
            parts[tensor.is_matrix].append(flat[start : start + tensor.tiles * size].view(self._nodes, -1))
        return torch.cat([*parts[True], *parts[False]], dim=1)

    def owners(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """Node, and component of the model, of components of the whole layout; int64, same shape."""
        size = self.whole.matrix_components
        vector = components - size
        is_matrix = vector < 0
        tile = torch.where(is_matrix, components >> MATRIX_SHIFT, self.whole.matrix_tiles + (vector >> VECTOR_SHIFT))
        inside = torch.where(is_matrix, components & (MATRIX_COMPONENTS - 1), vector & (VECTOR_COMPONENTS - 1))
        return self._node[tile], self._first[tile] + inside
