"""DeMo, decoupled momentum (arXiv 2411.19870): the node's own momentum, and the extraction of what is sent.

    m ← β·m + η·P(g)          accumulate; g is the mean gradient since the last extraction, P its preconditioning
    C = T(m)                  transform of each tile, in float
    select the k largest |C| of each tile, never zeros
    m ← m − α·T⁻¹(selected)   what was sent leaves the momentum, the rest stays

The module stores C instead of m, which is equivalent because T is linear (see `compress`). Only the sign of a selected
component travels, so its value is the sign times the tile's mean selected magnitude. With magnitudes, the value is the
sign times the value of the tile's code. The arithmetic need not be exact, because the momentum never leaves the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire_node.compression.compress import Compressor, Extracted
from thinwire_node.compression.fused import make_fused
from thinwire_node.compression.precondition import SecondMoment
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import Batch, TensorTiles, TileLayout
from thinwire_proto.exact.votes import Votes

if TYPE_CHECKING:
    from thinwire_node.compression.triton.compress import FusedCompressor, GradientInput


@dataclass(frozen=True)
class Sent:
    """The part that one extraction removed from the momentum, to be sent or put back.

    components: int64 [n], flat in tile space, ascending. values: float32 [n], the value of each vote. extraction: its
    number. codes: uint8, with magnitudes one for each tile that has votes; not saved to disk, since only `values` are
    needed to put it back.
    """

    components: Tensor
    values: Tensor
    extraction: int
    codes: Tensor | None = None

    def votes(self) -> Votes:
        codes = None if self.codes is None else self.codes.cpu().numpy()
        return Votes(self.components.cpu().numpy(), (self.values > 0).cpu().numpy(), codes)


class Momentum:
    """The momentum of one node.

    `buffer` holds its coefficients C, float32, flat in tile space. The contract says whether gradients are
    preconditioned.
    """

    def __init__(self, layout: TileLayout, spec: DemoSpec, device: torch.device | str) -> None:
        self._layout = layout
        self._spec = spec
        self._extractions = 0
        self.buffer = torch.zeros(layout.components, device=device)
        self.compressor = Compressor(spec, device)
        self.fused: FusedCompressor | None = make_fused(spec, self.buffer.device)
        """Processes matrix tiles in place of `compressor` on a suitable card."""
        self._second: SecondMoment | None = None
        if spec.precondition == "adam":
            self._second = SecondMoment(layout, spec.precondition_beta, device)

    @torch.no_grad()
    def accumulate(self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int = 1) -> None:
        """m ← β·m + η·P(g), where g is the mean gradient.

        gradients: sums over `samples`, by tensor name, contiguous, in the tensors' shapes.
        """
        self._begin()
        for batch, coefficients, _ in self._batches(self.buffer):
            self._accumulate(batch, coefficients, gradients, learning_rate, samples)

    @torch.no_grad()
    def extract(self, k: int) -> Sent:
        """Extract the k largest components of each tile from the momentum."""
        return self._collect(self._extract_parts(k, None), k)

    @torch.no_grad()
    def accumulate_and_extract(
        self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int, k: int
    ) -> Sent:
        """`accumulate` followed by `extract`, reading each batch of tiles from memory only once."""
        self._begin()
        return self._collect(self._extract_parts(k, (gradients, learning_rate, samples)), k)

    def _extract_parts(
        self, k: int, accumulated: tuple[Mapping[str, Tensor], float, int] | None
    ) -> Iterator[tuple[Extracted, int]]:
        """Yield what each part of the buffer sends, and its first component, in order.

        accumulated: arguments of `accumulate`, to run it on each part first.
        """
        if self.fused is not None:
            inputs = None if accumulated is None else self._inputs(*accumulated)
            yield self.fused.extract(self._layout.matrices(self.buffer), k, inputs), 0
        for batch, tiles, first in self._batches(self.buffer):
            if self.fused is not None and batch.is_matrix:
                continue
            if accumulated is not None:
                self._accumulate(batch, tiles, *accumulated)
            yield self.compressor.extract(tiles, k), first

    def _inputs(self, gradients: Mapping[str, Tensor], rate: float, samples: int) -> GradientInput:
        from thinwire_node.compression.triton.compress import GradientInput  # noqa: PLC0415 - Triton is optional

        matrices = [tensor for tensor in self._layout.tensors if tensor.is_matrix]
        matrix_gradients = [gradients[tensor.name] for tensor in matrices]
        if self._second is None:
            return GradientInput(matrices, matrix_gradients, rate, 1 / samples)
        seconds = [self._second.of(tensor.name)["second"] for tensor in matrices]
        return GradientInput(matrices, matrix_gradients, rate, 1 / samples, seconds, self._second.weight)

    def _begin(self) -> None:
        if self._second is not None:
            self._second.begin()
        self._extractions += 1

    def _accumulate(
        self, batch: Batch, coefficients: Tensor, gradients: Mapping[str, Tensor], rate: float, samples: int
    ) -> None:
        tiles, scratch = self.compressor.buffers(coefficients.shape)
        if any(part.is_padded for part in batch.parts):
            tiles.zero_()
        for part in batch.parts:
            band = part.band(gradients[part.tensor.name])
            if self._second is None:
                for band_piece, tiles_piece in part.pieces(band, tiles):
                    tiles_piece.copy_(band_piece)
                continue
            root = self._second.root_of(part, band, samples, scratch.view(-1)[: band.numel()].view(band.shape))
            for (band_piece, tiles_piece), (root_piece, _) in zip(
                part.pieces(band, tiles), part.pieces(root, tiles), strict=True
            ):
                torch.div(band_piece, root_piece, out=tiles_piece)
        scale = 1 / samples if self._second is None else self._second.scale / samples
        self.compressor.accumulate(coefficients, tiles, rate * scale)

    def _collect(self, parts: Iterator[tuple[Extracted, int]], k: int) -> Sent:
        """Collect the parts of `_extract_parts` in one list. Each part is copied before the next one is computed."""
        selected_max, device = self._layout.selected_max(k), self.buffer.device
        components = torch.empty(selected_max, dtype=torch.int64, device=device)
        values = torch.empty(selected_max, device=device)
        codes, end = [], 0
        for part, first in parts:
            start, end = end, end + len(part.components)
            torch.add(part.components, first, out=components[start:end])
            values[start:end] = part.values
            codes.append(part.codes)
        if end < selected_max:  # tiles with zeros have fewer than k
            components, values = components[:end].clone(), values[:end].clone()
        return Sent(components, values, self._extractions, torch.cat(codes) if self._spec.magnitude == "tile" else None)

    @torch.no_grad()
    def put_back(self, sent: Sent) -> None:
        """Undo an extraction that was not counted: m ← m + βʲ·α·q after j further extractions. So no gradient
        is lost."""
        share = self._spec.alpha * self._spec.beta ** (self._extractions - sent.extraction)
        components, values = self._on_device(sent)
        self.buffer.index_add_(0, components, values, alpha=share)

    def steps(self, sent: Sent, rate: float) -> Iterator[tuple[Batch, Tensor]]:
        """Yield the change of the parameters by an update with these votes alone, one batch of tiles at a time.

        Each change is float32 [n, 64, 64] or [n, 64]; its memory is reused for the next batch. rate: see
        `Compressor.step`.
        """
        components, values = self._on_device(sent)
        batches = [(batch, tiles.shape, first) for batch, tiles, first in self._batches(self.buffer)]
        ends = torch.tensor([first + prod(shape) for _, shape, first in batches], device=components.device)
        start = 0
        for (batch, shape, first), end in zip(batches, torch.searchsorted(components, ends).tolist(), strict=True):
            yield batch, self.compressor.step(components[start:end] - first, values[start:end], shape, rate)
            start = end

    def _on_device(self, sent: Sent) -> tuple[Tensor, Tensor]:
        return sent.components.to(self.buffer.device), sent.values.to(self.buffer.device)

    # what a node saves to disk, so that a restart loses no momentum

    def state(self) -> dict[str, Tensor]:
        """Copies of all learned tensors, by name."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        return {"coefficients": self.buffer} | (self._second.tensors() if self._second else {})

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])

    def of(self, tensor: TensorTiles) -> dict[str, Tensor]:
        """The learned tensors of one parameter, by name, not copied. coefficients: of its tiles, [n, 64, 64] or [n,
        64]."""
        second = self._second.of(tensor.name) if self._second else {}
        return {"coefficients": self._layout.tiles_of(self.buffer, tensor)} | second

    def forget(self) -> None:
        for tensor in self._tensors().values():
            tensor.zero_()

    def _batches(self, flat: Tensor) -> Iterator[tuple[Batch, Tensor, int]]:
        """Yield views of a flat buffer as tiles, in order: (batch, [n, 64, 64] or [n, 64], first component)."""
        first = 0
        for batch in self._layout.batches(self.compressor.batch_tiles):
            tiles = (self._layout.matrices if batch.is_matrix else self._layout.vectors)(flat)[batch.tiles]
            yield batch, tiles, first
            first += prod(tiles.shape)
