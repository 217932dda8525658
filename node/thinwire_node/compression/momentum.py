"""DeMo, decoupled momentum (arXiv 2411.19870): the node's own momentum, and what of it is sent.

    m ← β·m + η·P(g)          accumulate; g is the mean gradient since the last cut, P its preconditioning
    C = T(m)                  transform of each tile, in float
    keep the k of largest |C| a tile, zeros never
    m ← m − α·T⁻¹(kept)       what was sent leaves the momentum, the rest stays at home

What is kept from round to round is C and not m, which comes to the same, since T is linear (see `compress`). A kept
component counts as its sign times the tile's mean kept magnitude, since only its sign travels; where the contract has
the tile's magnitude travel too, times what its code stands for. Any arithmetic will do here: only its owner ever sees
the momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire_node.compression.compress import Compressor, Kept
from thinwire_node.compression.fused import make_fused
from thinwire_node.compression.precondition import SecondMoment
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import Batch, TensorTiles, TileLayout
from thinwire_proto.exact.votes import Votes

if TYPE_CHECKING:
    from thinwire_node.compression.triton.compress import Feed, FusedCompressor


@dataclass(frozen=True)
class Sent:
    """What a cut took out of the momentum, so that it can be sent, or put back.

    components: int64 [n], flat in tile space, ascending. values: float32 [n], what each counts as. codes: uint8, one
    for each tile that has votes, which say what the values are where magnitudes travel; they are not kept on disk.
    """

    components: Tensor
    values: Tensor
    extraction: int
    codes: Tensor | None = None

    def votes(self) -> Votes:
        codes = None if self.codes is None else self.codes.cpu().numpy()
        return Votes(self.components.cpu().numpy(), (self.values > 0).cpu().numpy(), codes)


class Momentum:
    """The momentum of one node: `buffer`, its coefficients C, float32, flat in tile space. The contract says whether
    what feeds it is preconditioned."""

    def __init__(self, layout: TileLayout, spec: DemoSpec, device: torch.device | str) -> None:
        self._layout = layout
        self._spec = spec
        self._extractions = 0
        self.buffer = torch.zeros(layout.components, device=device)
        self.compressor = Compressor(spec, device)
        self.fused: FusedCompressor | None = make_fused(spec, self.buffer.device)
        """What matrices go through in place of `compressor`, where there is a card for it."""
        self._second: SecondMoment | None = None
        if spec.precondition == "adam":
            self._second = SecondMoment(layout, spec.precondition_beta, device)

    @torch.no_grad()
    def accumulate(self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int = 1) -> None:
        """m ← β·m + η·P(g). gradients: by the tensor's name, in its shape, contiguous; sums over `samples`, and g is
        their mean."""
        self._begin()
        for batch, coefficients, _ in self._batches(self.buffer):
            self._accumulate(batch, coefficients, gradients, learning_rate, samples)

    @torch.no_grad()
    def extract(self, k: int) -> Sent:
        """Take the k largest components of each tile out of the momentum."""
        return self._sent(self._cut_parts(k, None), k)

    @torch.no_grad()
    def accumulate_and_extract(
        self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int, k: int
    ) -> Sent:
        """One and then the other, with each batch of tiles brought from memory once."""
        self._begin()
        return self._sent(self._cut_parts(k, (gradients, learning_rate, samples)), k)

    def _cut_parts(self, k: int, fed: tuple[Mapping[str, Tensor], float, int] | None) -> Iterator[tuple[Kept, int]]:
        """What each part of the buffer sends, and its first component, in their order. fed: arguments of `accumulate`,
        for the part to go through that first."""
        if self.fused is not None:
            feed = None if fed is None else self._feed_of(*fed)
            yield self.fused.extract(self._layout.matrices(self.buffer), k, feed), 0
        for batch, tiles, first in self._batches(self.buffer):
            if self.fused is not None and batch.is_matrix:
                continue
            if fed is not None:
                self._accumulate(batch, tiles, *fed)
            yield self.compressor.extract(tiles, k), first

    def _feed_of(self, gradients: Mapping[str, Tensor], rate: float, samples: int) -> Feed:
        from thinwire_node.compression.triton.compress import Feed  # noqa: PLC0415 - Triton is not there on every machine

        matrices = [tensor for tensor in self._layout.tensors if tensor.is_matrix]
        of_matrices = [gradients[tensor.name] for tensor in matrices]
        if self._second is None:
            return Feed(matrices, of_matrices, rate, 1 / samples)
        seconds = [self._second.of(tensor.name)["second"] for tensor in matrices]
        return Feed(matrices, of_matrices, rate, 1 / samples, seconds, self._second.weight)

    def _begin(self) -> None:
        if self._second is not None:
            self._second.begin()
        self._extractions += 1

    def _accumulate(
        self, batch: Batch, coefficients: Tensor, gradients: Mapping[str, Tensor], rate: float, samples: int
    ) -> None:
        tiles, scratch = self.compressor.room(coefficients.shape)
        if any(part.is_padded for part in batch.parts):
            tiles.zero_()
        for part in batch.parts:
            band = part.band(gradients[part.tensor.name])
            if self._second is None:
                for of_band, of_tiles in part.pieces(band, tiles):
                    of_tiles.copy_(of_band)
                continue
            root = self._second.root_of(part, band, samples, scratch.view(-1)[: band.numel()].view(band.shape))
            for (of_band, of_tiles), (of_root, _) in zip(
                part.pieces(band, tiles), part.pieces(root, tiles), strict=True
            ):
                torch.div(of_band, of_root, out=of_tiles)
        scale = 1 / samples if self._second is None else self._second.scale / samples
        self.compressor.accumulate(coefficients, tiles, rate * scale)

    def _sent(self, parts: Iterator[tuple[Kept, int]], k: int) -> Sent:
        """parts: see `_cut_parts`; each is put where it is to lie before the next is worked out."""
        most, device = self._layout.selected_max(k), self.buffer.device
        components = torch.empty(most, dtype=torch.int64, device=device)
        values = torch.empty(most, device=device)
        codes, end = [], 0
        for part, first in parts:
            start, end = end, end + len(part.components)
            torch.add(part.components, first, out=components[start:end])
            values[start:end] = part.values
            codes.append(part.codes)
        if end < most:  # where there were zeros
            components, values = components[:end].clone(), values[:end].clone()
        return Sent(components, values, self._extractions, torch.cat(codes) if self._spec.magnitude == "tile" else None)

    @torch.no_grad()
    def put_back(self, sent: Sent) -> None:
        """It was not counted: m ← m + βʲ·α·q, for the j cuts since. Nothing that was learned is lost."""
        share = self._spec.alpha * self._spec.beta ** (self._extractions - sent.extraction)
        components, values = self._here(sent)
        self.buffer.index_add_(0, components, values, alpha=share)

    def steps(self, sent: Sent, rate: float) -> Iterator[tuple[Batch, Tensor]]:
        """What an update of these votes alone would add to the parameters, a batch of tiles at a time: float32
        [n, 64, 64] or [n, 64], which lasts until the next batch. rate: see `Compressor.step`."""
        components, values = self._here(sent)
        batches = [(batch, tiles.shape, first) for batch, tiles, first in self._batches(self.buffer)]
        ends = torch.tensor([first + prod(shape) for _, shape, first in batches], device=components.device)
        start = 0
        for (batch, shape, first), end in zip(batches, torch.searchsorted(components, ends).tolist(), strict=True):
            yield batch, self.compressor.step(components[start:end] - first, values[start:end], shape, rate)
            start = end

    def _here(self, sent: Sent) -> tuple[Tensor, Tensor]:
        return sent.components.to(self.buffer.device), sent.values.to(self.buffer.device)

    # what a node keeps on disk, so that a restart costs nothing that was learned

    def state(self) -> dict[str, Tensor]:
        """Copies of all that is learned here, by name."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        return {"coefficients": self.buffer} | (self._second.tensors() if self._second else {})

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])

    def of(self, tensor: TensorTiles) -> dict[str, Tensor]:
        """What is learned of one tensor, by name; not copies. coefficients: of its tiles, [n, 64, 64] or [n, 64]."""
        second = self._second.of(tensor.name) if self._second else {}
        return {"coefficients": self._layout.tiles_of(self.buffer, tensor)} | second

    def forget(self) -> None:
        for tensor in self._tensors().values():
            tensor.zero_()

    def _batches(self, flat: Tensor) -> Iterator[tuple[Batch, Tensor, int]]:
        """Views of a flat buffer as tiles, in its order: (batch, [n, 64, 64] or [n, 64], first component)."""
        first = 0
        for batch in self._layout.batches(self.compressor.batch_tiles):
            tiles = (self._layout.matrices if batch.is_matrix else self._layout.vectors)(flat)[batch.tiles]
            yield batch, tiles, first
            first += prod(tiles.shape)
