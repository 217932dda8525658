"""The ranks of a site share a parameter: each one holds some of its rows, and owns some of its tiles.

The problem: FSDP2 cuts a parameter into equal rows for each rank, and a compressed exchange needs whole tiles of 64
rows. An edge between two ranks then lies inside a row of tiles.

The answers that fail: a rank that gathers a whole parameter, which is what shards are there to avoid; tiles of each
shard by itself, whose votes depend on the number of ranks; a row of tiles for one of its ranks alone, which may then
have twice the momentum of another.

The sketch: tiles are those of the whole matrix, numbered row by row, and a rank owns a range of them. Of a row of tiles
that several ranks share, each owns as large a part of the columns as it holds of the rows. So the ranges are as long as
the shards, within a tile, and only rows between an edge and the next tile travel. Where the edges of all shards are
multiples of 64, nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.placement import local
from thinwire_proto.contract import TILE_EDGE, Parameter
from thinwire_proto.exact.fingerprint import fingerprint_of_pieces
from thinwire_proto.exact.tiles import TileLayout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Rectangle:
    """A part of a parameter, seen as a matrix; a vector is one row."""

    rows: range
    columns: range

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    def within(self, other: Rectangle) -> Rectangle:
        """The part that both have; it may be empty."""
        return Rectangle(overlap(self.rows, other.rows), overlap(self.columns, other.columns))

    def of(self, tensor: Tensor, held: Rectangle) -> Tensor:
        """A view [rows, columns] of this part in a contiguous tensor that holds the rectangle `held`."""
        whole = tensor.view(len(held.rows), len(held.columns))
        rows = whole.narrow(0, self.rows.start - held.rows.start, len(self.rows))
        return rows.narrow(1, self.columns.start - held.columns.start, len(self.columns))


def overlap(a: range, b: range) -> range:
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))


def chunk(size: int, ranks: int, rank: int) -> range:
    """The part of a dimension that a rank holds, as torch.chunk and FSDP2 divide it. The last ranks may hold less, or
    none."""
    each = -(-size // ranks)
    return range(min(rank * each, size), min((rank + 1) * each, size))


class Sharing:
    """One parameter, as the ranks of a site share it.

    shape: of the whole parameter, one or more dimensions. Its first one is sharded."""

    def __init__(self, shape: Sequence[int], ranks: int) -> None:
        self.shape = matrix_shape(shape)
        self.ranks = ranks
        self._layout = TileLayout([Parameter(name="whole", shape=self.shape)])
        self.tensor = self._layout.tensors[0]
        held = [chunk(self.shape[0], ranks, rank) for rank in range(ranks)]
        edges = [self._nearest_tile(rows.start) for rows in held] + [self.tensor.tiles]
        self.tiles = [range(*pair) for pair in pairwise(edges)]
        """The tiles that each rank owns."""
        self.held = [
            Rectangle(part, range(self.tensor.columns)) if self.tensor.is_matrix else Rectangle(range(1), part)
            for part in held
        ]
        """The part that each rank holds."""

    def pieces(self, rank: int) -> list[Rectangle]:
        """The tiles of a rank as rectangles of the parameter, in the order of the tiles: at most the rest of a row of
        tiles, whole rows of tiles, and the beginning of one."""
        parts = self._layout.parts(self.tiles[rank])
        return [Rectangle(*(range(side.start, side.stop) for side in (part.rows, part.columns))) for part in parts]

    def piece_shape(self, piece: Rectangle) -> tuple[int, ...]:
        return (len(piece.rows), len(piece.columns)) if self.tensor.is_matrix else (len(piece.columns),)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        return (TILE_EDGE, TILE_EDGE) if self.tensor.is_matrix else (TILE_EDGE,)

    def travels(self, source: int, target: int) -> Iterator[tuple[int, Rectangle]]:
        """The parts of another rank's tiles that a rank holds: numbers of the pieces, and parts of the parameter."""
        for number, piece in enumerate(self.pieces(target)):
            if common := piece.within(self.held[source]):
                yield number, common

    @property
    def rows_travel(self) -> bool:
        """Whether any rank owns a tile of which another one holds a part."""
        return any(piece.within(held) != piece for rank, held in enumerate(self.held) for piece in self.pieces(rank))

    def _nearest_tile(self, position: int) -> int:
        """The tile at which the tiles of a rank begin, whose part of the first dimension begins at `position`."""
        if position >= self.shape[0]:
            return self.tensor.tiles
        if not self.tensor.is_matrix:
            return (position + TILE_EDGE // 2) // TILE_EDGE
        row, inside = divmod(position, TILE_EDGE)
        height = min(TILE_EDGE, self.tensor.rows - row * TILE_EDGE)
        return row * self.tensor.tile_columns + (inside * self.tensor.tile_columns + height // 2) // height


def matrix_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape in at most two dimensions: the first, and the rest."""
    return (shape[0], prod(shape[1:])) if len(shape) > 2 else tuple(shape)


SHARD_LATER = "create DeMo after fully_shard, or leave the model unwrapped"


class Site:
    """The ranks of a site, and what they say to each other beside the exchange, which is between sites.

    mesh: of one dimension, over which `fully_shard` has sharded the parameters."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.group: dist.ProcessGroup = mesh.get_group()
        self.ranks = dist.get_world_size(self.group)
        self.rank = dist.get_rank(self.group)

    def largest(self, values: Sequence[float], device: torch.device) -> list[float]:
        """The largest of each value that any rank has. Waits for the device."""
        found = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return [float(value) for value in found.tolist()]

    def exchange(
        self, outgoing: Sequence[Sequence[Tensor]], incoming: Sequence[Sequence[Tensor]], device: torch.device
    ) -> None:
        """Copy tensors to other ranks, in one all-to-all. All ranks must call it.

        outgoing: for each rank, what it gets, float32, in any shapes. incoming: for each rank, where to write what it
        sends: as many tensors of the same sizes, in the same order."""
        for there, here in zip(outgoing[self.rank], incoming[self.rank], strict=True):
            here.copy_(there.reshape(here.shape))
        sent, received = self._others(outgoing), self._others(incoming)
        flat = [tensor.reshape(-1) for of_rank in sent for tensor in of_rank]
        message = torch.cat(flat) if flat else torch.empty(0, dtype=torch.float32, device=device)
        send, receive = ([sum(map(Tensor.numel, of_rank)) for of_rank in tensors] for tensors in (sent, received))
        answer = torch.empty(sum(receive), dtype=torch.float32, device=device)
        dist.all_to_all_single(answer, message, receive, send, group=self.group)
        places = [tensor for of_rank in received for tensor in of_rank]
        parts = answer.split_with_sizes([tensor.numel() for tensor in places])
        for here, part in zip(places, parts, strict=True):
            here.copy_(part.view(here.shape))

    def fingerprint(self, parameters: Sequence[Tensor]) -> int:
        """The fingerprint of this rank's shards. Those of all ranks add up, modulo 2⁶⁴, to that of the parameters."""
        firsts = (chunk(len(p), self.ranks, self.rank).start * prod(p.shape[1:]) for p in parameters)
        pieces = ((number, first, local(p)) for number, (first, p) in enumerate(zip(firsts, parameters, strict=True)))
        return fingerprint_of_pieces(pieces, 0)

    def _others(self, tensors: Sequence[Sequence[Tensor]]) -> list[Sequence[Tensor]]:
        return [[] if rank == self.rank else of_rank for rank, of_rank in enumerate(tensors)]
