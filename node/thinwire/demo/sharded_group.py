"""A param group whose parameters are shards of FSDP2: votes on the tiles that this rank owns.

`shards` says which tiles these are. A step moves the gradients of the rows between an edge and a tile to the owner of
the tile, and the changes of these rows back. All else is the arithmetic of whole parameters, tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.demo.param_group import GroupSettings, VoteGroup, contiguous, whole_layout
from thinwire.demo.shards import Rectangle, Sharing, Site, chunk, overlap
from thinwire.placement import as_dtensor, local
from thinwire_proto.contract import Parameter
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.apply import apply_votes, subtract_change
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import TopkSelection
from thinwire_proto.exact.votes import Merged

Route = list[list[tuple[int, int, Rectangle]]]
"""The parts of parameters that travel, by rank: numbers of the parameter and of its owner's piece, and the part."""


class ShardedVoteGroup(VoteGroup):
    """Its layout is that of this rank's pieces: parameter 3 may have the tensors 3.0, 3.1 and 3.2, or none."""

    def __init__(self, parameters: Sequence[Tensor], settings: GroupSettings, site: Site) -> None:
        self._site = site
        self._sharings = [Sharing(parameter.shape, site.ranks) for parameter in parameters]
        self._here = [sharing.held[site.rank] for sharing in self._sharings]
        self._owns = [sharing.pieces(site.rank) for sharing in self._sharings]
        self._pieces = [(number, at, piece) for number, own in enumerate(self._owns) for at, piece in enumerate(own)]
        shapes = {_name(number, at): self._sharings[number].piece_shape(piece) for number, at, piece in self._pieces}
        super().__init__(parameters, settings, TileLayout([Parameter(name=n, shape=s) for n, s in shapes.items()]))
        self._numbers = self._numbers_of_tiles(whole_layout(parameters))
        self._held: Route = [[] for _ in range(site.ranks)]  # by this rank, of tiles that others own
        self._owned: Route = [[] for _ in range(site.ranks)]  # the other way round
        for rank in range(site.ranks):
            if rank != site.rank:
                for number, sharing in enumerate(self._sharings):
                    self._held[rank] += [(number, *what) for what in sharing.travels(site.rank, rank)]
                    self._owned[rank] += [(number, *what) for what in sharing.travels(rank, site.rank)]
        self._rows_travel = any(sharing.rows_travel for sharing in self._sharings)

    # a step

    def _by_tensor(self, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """The gradients of this rank's pieces. Those that it holds whole are views."""
        found = self._views(gradients)
        edges = self._room_for_edges()
        for number, at, own in self._edges_held():
            self._part(edges, number, at, own).copy_(own.of(gradients[number], self._here[number]))
        if self._rows_travel:
            outgoing = [[what.of(gradients[n], self._here[n]) for n, _, what in route] for route in self._held]
            incoming = [[self._part(edges, *where) for where in route] for route in self._owned]
            self._site.exchange(outgoing, incoming, self._device)
        return found | edges

    def _subtract(self, merged: Merged, rate: float, decay: float, step: int) -> None:
        with contiguous([local(parameter) for parameter in self.parameters]) as held:
            edges = self._room_for_edges()
            settings: dict[str, Any] = {"learning_rate": rate, "decay": decay, "step": step}
            apply_votes(self._views(held), merged, self._layout, self._demo, **settings, changes=edges)
            for number, at, own in self._edges_held():
                part = self._part(edges, number, at, own)
                subtract_change(own.of(held[number], self._here[number]), part, decay)
            if not self._rows_travel:
                return
            outgoing = [[self._part(edges, *where) for where in route] for route in self._owned]
            incoming = [
                [
                    torch.empty(len(what.rows), len(what.columns), dtype=torch.float32, device=self._device)
                    for _, _, what in route
                ]
                for route in self._held
            ]
            self._site.exchange(outgoing, incoming, self._device)
            for route, changes in zip(self._held, incoming, strict=True):
                for (number, _, what), change in zip(route, changes, strict=True):
                    subtract_change(what.of(held[number], self._here[number]), change, decay)

    def _selection(self, step: int) -> TopkSelection | None:
        """Ties are drawn as in the whole parameters."""
        if not self._demo.update_topk:
            return None
        return TopkSelection(self._layout, self._demo.update_topk, step, self._numbers)

    def _numbers_of_tiles(self, whole: TileLayout) -> npt.NDArray[np.int64]:
        """The numbers of this rank's tiles among those of the whole parameters, int64 [tiles]."""
        found: dict[bool, list[npt.NDArray[np.int64]]] = {True: [np.empty(0, np.int64)], False: []}
        for tensor, sharing in zip(whole.tensors, self._sharings, strict=True):
            own, first = sharing.tiles[self._site.rank], 0 if tensor.is_matrix else whole.matrix_tiles
            found[tensor.is_matrix].append(np.arange(own.start, own.stop) + tensor.first_tile + first)
        return np.concatenate(found[True] + found[False])

    def _is_view(self, number: int, piece: Rectangle) -> bool:
        return piece.within(self._here[number]) == piece and len(piece.columns) == len(self._here[number].columns)

    def _views(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """The pieces that follow on each other in the tensors that this rank holds."""
        return {
            _name(number, at): piece.of(tensors[number], self._here[number]).view(
                self._sharings[number].piece_shape(piece)
            )
            for number, at, piece in self._pieces
            if self._is_view(number, piece)
        }

    def _room_for_edges(self) -> dict[str, Tensor]:
        """New tensors for all other pieces."""
        return {
            _name(number, at): torch.empty(
                self._sharings[number].piece_shape(piece), dtype=torch.float32, device=self._device
            )
            for number, at, piece in self._pieces
            if not self._is_view(number, piece)
        }

    def _edges_held(self) -> Iterator[tuple[int, int, Rectangle]]:
        """The parts of these pieces that this rank holds itself."""
        for number, at, piece in self._pieces:
            own = piece.within(self._here[number])
            if own and not self._is_view(number, piece):
                yield number, at, own

    def _part(self, pieces: Mapping[str, Tensor], number: int, at: int, part: Rectangle) -> Tensor:
        """A view of a part of a parameter, in the piece of this rank that it belongs to."""
        return part.of(pieces[_name(number, at)], self._owns[number][at])

    # its state

    def state(self) -> list[dict[str, Tensor]]:
        """The learned tensors of this rank's tiles, by parameter and name, not copied. coefficients: [tiles, 64, 64] or
        [tiles, 64]. second: flat, piece by piece."""
        learned, found = self._momentum.tensors(), []
        of_kind = {
            True: self._layout.matrices(self._momentum.buffer),
            False: self._layout.vectors(self._momentum.buffer),
        }
        tiles, seconds = {True: 0, False: 0}, 0
        for number, sharing in enumerate(self._sharings):
            kind, count = sharing.tensor.is_matrix, len(sharing.tiles[self._site.rank])
            one = {"step": self._step, "coefficients": of_kind[kind].narrow(0, tiles[kind], count)}
            tiles[kind] += count
            if "second" in learned:
                size = sum(map(len, self._owns[number]))
                one |= {"second": learned["second"].narrow(0, seconds, size), "second_weight": learned["second_weight"]}
                seconds += size
            found.append(one)
        return found

    def saved(self) -> list[dict[str, Tensor]]:
        """Copies of the learned tensors, as DTensors in the shapes that those of whole parameters have.

        All ranks of the site must call it, because tiles and rows move to the ranks where a DTensor has them."""
        from torch.distributed.tensor import Shard, empty  # noqa: PLC0415 - takes a second, and few scripts need it

        learned = self.state()
        found: list[dict[str, Tensor]] = []
        for sharing, one in zip(self._sharings, learned, strict=True):
            shapes = _saved_shapes(sharing)
            found.append({name: tensor.clone() for name, tensor in one.items() if name not in shapes})
            for name in shapes.keys() & one.keys():
                found[-1][name] = empty(
                    shapes[name], dtype=torch.float32, device_mesh=self._site.mesh, placements=[Shard(0)]
                )
        self._site.exchange(self._at_owner(learned), self._at_holder(found), self._device)
        return found

    def load(self, saved: Sequence[Mapping[str, Tensor]]) -> None:
        """Continue from what `state` or `saved` gave, or from the state of whole parameters."""
        learned = self.state()
        if any(as_dtensor(tensor) is not None for one in saved for tensor in one.values()):
            self._site.exchange(self._at_holder(saved), self._at_owner(learned), self._device)
        for number, (mine, one) in enumerate(zip(learned, saved, strict=True)):
            for name, tensor in one.items():
                if as_dtensor(tensor) is None:
                    whole = tensor.shape != mine[name].shape and name in ("coefficients", "second")
                    mine[name].copy_(self._cut(number, name, tensor) if whole else tensor)

    def _at_owner(self, learned: Sequence[Mapping[str, Tensor]]) -> list[list[Tensor]]:
        """For each rank, the parts of this rank's learned tensors that it holds of DTensors."""
        found: list[list[Tensor]] = [[] for _ in range(self._site.ranks)]
        for sharing, pieces, one in zip(self._sharings, self._owns, learned, strict=True):
            own = sharing.tiles[self._site.rank]
            for rank, parts in enumerate(found):
                common = overlap(own, chunk(sharing.tensor.tiles, self._site.ranks, rank))
                parts.append(one["coefficients"][common.start - own.start : common.stop - own.start])
                first = 0
                for piece in pieces if "second" in one else []:
                    if part := piece.within(sharing.held[rank]):
                        parts.append(part.of(one["second"].narrow(0, first, len(piece)), piece))
                    first += len(piece)
        return found

    def _at_holder(self, saved: Sequence[Mapping[str, Tensor]]) -> list[list[Tensor]]:
        """For each rank, the parts of this rank's DTensors whose tiles it owns."""
        found: list[list[Tensor]] = [[] for _ in range(self._site.ranks)]
        for sharing, here, one in zip(self._sharings, self._here, saved, strict=True):
            held = {name: self._local(tensor) for name, tensor in one.items() if name in _saved_shapes(sharing)}
            own = chunk(sharing.tensor.tiles, self._site.ranks, self._site.rank)
            for rank, parts in enumerate(found):
                common = overlap(own, sharing.tiles[rank])
                parts.append(held["coefficients"][common.start - own.start : common.stop - own.start])
                for piece in sharing.pieces(rank) if "second" in held else []:
                    if part := piece.within(here):
                        parts.append(part.of(held["second"], here))
        return found

    def _local(self, tensor: Tensor) -> Tensor:
        """This rank's part of a saved tensor. Raises ConfigError if it is sharded for other ranks."""
        from torch.distributed.tensor import Shard  # noqa: PLC0415 - as above

        sharded = as_dtensor(tensor)
        if sharded is None or sharded.device_mesh != self._site.mesh or sharded.placements != (Shard(0),):
            raise ConfigError(
                "the state of the optimizer is not sharded over the ranks of its parameters; load it by "
                "torch.distributed.checkpoint, into what get_optimizer_state_dict returns here"
            )
        return sharded.to_local()

    def _cut(self, number: int, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a learned tensor of the whole parameter."""
        sharing = self._sharings[number]
        if tuple(whole.shape) != _saved_shapes(sharing)[name]:
            raise ConfigError(f"the state of parameter {number} has {name} in another shape: {tuple(whole.shape)}")
        if name == "coefficients":
            own = sharing.tiles[self._site.rank]
            return whole[own.start : own.stop]
        everything = Rectangle(range(sharing.tensor.rows), range(sharing.tensor.columns))
        parts = [piece.of(whole, everything).reshape(-1) for piece in self._owns[number]]
        return torch.cat([whole.new_empty(0), *parts])


def _name(number: int, at: int) -> str:
    return f"{number}.{at}"


def _saved_shapes(sharing: Sharing) -> dict[str, tuple[int, ...]]:
    """The shapes of a whole parameter's learned tensors that have a number for each component of its tiles, or for each
    of its own elements."""
    return {"coefficients": (sharing.tensor.tiles, *sharing.tile_shape), "second": sharing.shape}
