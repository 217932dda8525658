"""The parameters of a run, or a shard of them, as named float32 tensors on one device.

A shard holds a range of tiles in the flat tile numbering (matrix tiles first). It consists of rectangles, and each is a
named tensor with its own tile space. So the same code applies an update to a shard and to the whole. Each tile is
decoded and stepped independently, so shards end with the same bits as the whole. The fingerprints of all shards add up
to the fingerprint of the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.apply import apply_votes, flush_subnormals
from thinwire_proto.exact.fingerprint import fingerprint_of_runs
from thinwire_proto.exact.mix64 import MASK
from thinwire_proto.exact.tensor_files import read_tensors, save_tensors
from thinwire_proto.exact.tiles import Part, TileLayout
from thinwire_proto.exact.votes import Levels, Merged, Signs


class Parameters:
    """Tensors in the manifest's order, changed in place.

    whole: tile layout of all parameters of the run. tensors: by name; for a shard, with the names and shapes of
    `shard_shapes`. tiles: range of tiles in this shard; None means all. Subnormal values become zero. Raises
    ReplicaError if a tensor is missing or has the wrong type or shape.
    """

    def __init__(self, whole: TileLayout, tensors: Mapping[str, Tensor], tiles: range | None = None) -> None:
        self.whole = whole
        self.tiles = range(whole.tiles) if tiles is None else tiles
        self.is_shard = self.tiles != range(whole.tiles)
        shapes = shard_shapes(whole, self.tiles) if self.is_shard else {t.name: t.shape for t in whole.tensors}
        self.tensors: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            tensor = tensors.get(name)
            if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                raise ReplicaError(f"parameter {name} is missing or is not float32 of shape {shape}")
            self.tensors[name] = tensor if self.is_shard else tensor.contiguous()
            flush_subnormals(self.tensors[name])

    @cached_property
    def layout(self) -> TileLayout:
        """The tile layout of these tensors. In a shard's own layout, tile 0 is tile `tiles.start` of the whole."""
        if not self.is_shard:
            return self.whole
        # skip validation: the name of a rectangle may be longer than the manifest allows
        return TileLayout([Parameter.model_construct(name=n, shape=tuple(t.shape)) for n, t in self.tensors.items()])

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    def fingerprint(self, nonce: int) -> int:
        """See `thinwire_proto.exact.fingerprint`. The fingerprints of all shards add up to the whole's, mod 2⁶⁴."""
        return fingerprint_of_runs(self._runs(), nonce) & MASK

    def _runs(self) -> Iterator[tuple[int, int, Tensor]]:
        if not self.is_shard:
            for number, tensor in enumerate(self.tensors.values()):
                yield number, 0, tensor
            return
        numbers = {tensor.name: number for number, tensor in enumerate(self.whole.tensors)}
        for part, values in zip(self.whole.parts(self.tiles), self.tensors.values(), strict=True):
            number, columns = numbers[part.tensor.name], part.tensor.columns
            if part.columns == slice(0, columns):
                yield number, part.rows.start * columns, values
                continue
            for row, of_row in enumerate(values.view(-1, values.shape[-1]), part.rows.start):
                yield number, row * columns + part.columns.start, of_row

    def state_hash(self) -> bytes:
        """SHA-256 of the parameters' little-endian bytes in the manifest's order. A shard has none."""
        if self.is_shard:
            raise ValueError("a shard has no state hash, because hashes of shards do not add up")
        return hash_of(self.tensors.values())

    def apply(
        self, merged: Merged | Levels | Signs, demo: DemoSpec, *, learning_rate: float, decay: float, step: int
    ) -> None:
        """Apply the part of an update that concerns these parameters; see `apply_votes`."""
        if self.is_shard:
            merged = _within(merged, self.whole, self.tiles)
        apply_votes(self.tensors, merged, self.layout, demo, learning_rate=learning_rate, decay=decay, step=step)

    def shard(self, tiles: range) -> Parameters:
        """The shard with a range of tiles. It shares memory with the whole; `clone` it to get a copy."""
        if self.is_shard or not 0 <= tiles.start < tiles.stop <= self.whole.tiles:
            raise ValueError(f"a shard is a range of the {self.whole.tiles} tiles of a whole; this is {tiles}")
        views = {_name(part): part.band(self.tensors[part.tensor.name]) for part in self.whole.parts(tiles)}
        return self if tiles == self.tiles else Parameters(self.whole, views, tiles)

    def clone(self, device: torch.device | str = "cpu") -> Parameters:
        return self.with_tensors({n: tensor.to(device, copy=True).contiguous() for n, tensor in self.tensors.items()})

    def with_tensors(self, tensors: dict[str, Tensor]) -> Parameters:
        """The same parameters in other tensors, which have these names, shapes and values, and are not looked at."""
        twin = copy(self)
        twin.tensors = tensors
        return twin

    def save(self, path: Path, about: dict[str, str]) -> None:
        """Write a safetensors file with `about` as metadata. The caller syncs and renames it. Raises OSError."""
        save_tensors(self.tensors, path, about)


def load_parameters(whole: TileLayout, path: Path, tiles: range | None = None) -> Parameters:
    """Read a file of `Parameters.save` onto the CPU. Raises ReplicaError, SafetensorError or OSError."""
    return Parameters(whole, read_tensors(path), tiles)


def hash_of(tensors: Iterable[Tensor]) -> bytes:
    """SHA-256 of the little-endian bytes of float32 tensors, one after another."""
    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().reshape(-1).numpy().astype("<f4", copy=False)
        digest.update(flat.view(np.uint8).data)
    return digest.digest()


def shard_shapes(whole: TileLayout, tiles: range) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a shard."""
    return {_name(part): _shape(part) for part in whole.parts(tiles)}


def _name(part: Part) -> str:
    """The name of a part: the tensor's name, followed by the range if the part is not the whole tensor."""
    tensor, rows, columns = part.tensor, part.rows, part.columns
    if (rows, columns) == (slice(0, tensor.rows), slice(0, tensor.columns)):
        return tensor.name
    of_rows = f"{rows.start}:{rows.stop}," if tensor.is_matrix else ""
    return f"{tensor.name}[{of_rows}{columns.start}:{columns.stop}]"


def _shape(part: Part) -> tuple[int, ...]:
    columns = part.columns.stop - part.columns.start
    return (part.rows.stop - part.rows.start, columns) if part.tensor.is_matrix else (columns,)


def _within(merged: Merged | Levels | Signs, whole: TileLayout, tiles: range) -> Merged | Levels | Signs:
    """The part of an update that concerns a range of tiles."""
    if isinstance(merged, Signs):
        return _signs_in(merged, whole, tiles)
    if isinstance(merged, Merged):
        return _merged_in(merged, whole, tiles)
    values = merged.values[whole.first_component(tiles.start) : whole.first_component(tiles.stop)]
    return Levels(merged.levels, values, merged.scales[tiles.start : tiles.stop])


def _merged_in(merged: Merged, whole: TileLayout, tiles: range) -> Merged:
    """The merged votes of a range of tiles, with components numbered from the start of the range."""
    first = whole.first_component(tiles.start)
    edges = [first, whole.first_component(tiles.stop)]
    start, stop = np.searchsorted(merged.components, edges).tolist()
    scales = merged.scales
    if scales is not None:  # one for each tile that has values
        with_values = np.unique(whole.tile_of(merged.components))
        scales = scales[slice(*np.searchsorted(with_values, [tiles.start, tiles.stop]).tolist())]
    return Merged(merged.components[start:stop] - first, merged.values[start:stop], scales)


def _signs_in(signs: Signs, whole: TileLayout, tiles: range) -> Signs:
    """The signs of a range of tiles. Signs are listed by tensor, so the ones before the range must be counted."""
    parts: dict[str, list[Part]] = {}
    for part in whole.parts(tiles):
        parts.setdefault(part.tensor.name, []).append(part)
    start, positive = 0, []
    for tensor in whole.tensors:
        stepped = whole.in_tiles(tensor, signs.stepped)
        end = start + int(np.count_nonzero(stepped))
        if tensor.name in parts:
            of_tensor = np.zeros(stepped.shape, np.bool_)
            of_tensor[stepped] = signs.positive[start:end]
            positive += [of_tensor[p.rows, p.columns][stepped[p.rows, p.columns]] for p in parts[tensor.name]]
        start = end
    return Signs(signs.stepped[tiles.start : tiles.stop], np.concatenate([*positive, np.zeros(0, np.bool_)]))
