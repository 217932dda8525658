"""DeMo, decoupled momentum (arXiv 2411.19870): the node's own momentum, and the extraction of what is sent.

    m ← β·m + η·P(g)          accumulate; g is the mean gradient since the last extraction, P its preconditioning
    C = T(m)                  transform of each tile, in float
    select the k largest |C| of each tile, never zeros
    m ← m − T⁻¹(selected)     what was sent leaves the momentum, the rest stays

The module stores C instead of m, which is equivalent because T is linear (see `compress`). Only the sign of a selected
component travels, so its value is the sign times the tile's mean selected magnitude. With magnitudes, the value is the
sign times the value of the tile's code. The arithmetic need not be exact, because the momentum never leaves the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire.compression.compress import Compressor, Extracted, zeros
from thinwire.compression.fused import make_fused
from thinwire.compression.precondition import SecondMoment
from thinwire.compression.sent import Fill, Sent, WholeSent
from thinwire_proto.batch_pool import one_torch_thread, process_batches
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, Batch, TensorTiles, TileLayout
from thinwire_proto.out_of_memory import retry_out_of_memory

if TYPE_CHECKING:
    from thinwire.compression.triton.compress import FusedCompressor, GradientInput


@dataclass(frozen=True)
class BatchOfTiles:
    """A batch of the buffer: its coefficients as a view, [n, 64, 64] or [n, 64], and the number of the first one."""

    batch: Batch
    values: Tensor
    first: int


@dataclass(frozen=True)
class Added:
    """The arguments of `Momentum.accumulate`, and what it has done, should a batch be repeated for lack of memory.

    seconds: parts of the layout whose second moments are updated, by tensor, first row and first column. batches: those
    whose gradient is in the momentum, by their first component."""

    gradients: Mapping[str, Tensor]
    rate: float
    samples: int
    seconds: set[tuple[str, int, int]] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)


class Momentum:
    """The momentum of one node.

    `buffer` holds its coefficients C, float32, flat in tile space. The contract says whether gradients are
    preconditioned."""

    def __init__(self, layout: TileLayout, spec: DemoSpec, device: torch.device | str) -> None:
        self._layout = layout
        self._spec = spec
        self._extractions = 0
        self.buffer = zeros((layout.components,), device)
        self.compressor = Compressor(spec, device)
        self.fused: FusedCompressor | None = None
        """Processes matrix tiles in place of `compressor` on a suitable card, unless there is nothing to choose."""
        if not spec.sends_whole_tiles:
            self.fused = make_fused(spec, self.buffer.device)
        self._second: SecondMoment | None = None
        if spec.precondition == "adam":
            self._second = SecondMoment(layout, spec.precondition_beta, device)

    @torch.no_grad()
    def accumulate(self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int = 1) -> None:
        """m ← β·m + η·P(g), where g is the mean gradient.

        gradients: sums over `samples`, by tensor name, contiguous, in the tensors' shapes. On another device than the
        momentum, they come over batch by batch."""
        self._begin()
        added = Added(gradients, learning_rate, samples)

        def accumulate(tiles: BatchOfTiles, slot: int) -> None:
            self._accumulate(tiles, added, slot)

        process_batches(accumulate, self._batches(), self.buffer.device)

    @torch.no_grad()
    def extract(self, k: int) -> Sent:
        """Extract the k largest components of each tile from the momentum."""
        return self._extract(k, None)

    @torch.no_grad()
    def accumulate_and_extract(
        self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int, k: int
    ) -> Sent:
        """`accumulate` followed by `extract`, reading each batch of tiles from memory only once."""
        self._begin()
        return self._extract(k, Added(gradients, learning_rate, samples))

    def _extract(self, k: int, added: Added | None) -> Sent:
        """Extract from each batch of tiles, and collect the parts in one list. added: see `accumulate`; it is added to
        each batch first."""
        if self._spec.sends_whole_tiles:
            return self._extract_whole(added)
        batches = self._batches(with_matrices=self.fused is None)
        chosen = retry_out_of_memory(lambda: _Chosen(self._layout.selected_max(k), self.buffer.device))
        if self.fused is not None:
            inputs = None if added is None else self._inputs(added.gradients, added.rate, added.samples)
            matrices = self._layout.matrices(self.buffer)
            chosen.put(self.fused.extract(matrices, k, inputs), 0, 0)

        def extract(tiles: BatchOfTiles, slot: int) -> None:
            if added is not None:
                self._accumulate(tiles, added, slot)
            chosen.put(self.compressor.extract(tiles.values, k, slot), tiles.first, self._selected_before(tiles, k))

        process_batches(extract, batches, self.buffer.device)
        return retry_out_of_memory(partial(chosen.sent, self._extractions, has_codes=self._spec.magnitude == "tile"))

    def _extract_whole(self, added: Added | None) -> Sent:
        """Extract all components of each tile."""
        device = self.buffer.device
        signs, sizes, codes = retry_out_of_memory(self._whole)

        def extract(of_batch: BatchOfTiles, slot: int) -> None:
            if added is not None:
                self._accumulate(of_batch, added, slot)
            part = self._tiles_of(of_batch.batch)
            own = signs[of_batch.first : of_batch.first + of_batch.values.numel()].view(of_batch.values.shape)
            take_out = self.compressor.extract_levels if self._spec.vote_levels else self.compressor.extract_whole
            take_out(of_batch.values, own, sizes[part], codes[part], slot)

        process_batches(extract, self._batches(), device)
        voted = retry_out_of_memory(lambda: codes[sizes > 0])
        return WholeSent(signs, sizes, self._extractions, voted, self._spec.vote_levels)

    def _whole(self) -> tuple[Tensor, Tensor, Tensor]:
        """Room for the signs, sizes and codes of all tiles."""
        device, tiles = self.buffer.device, self._layout.tiles
        signs = torch.empty(self._layout.components, dtype=torch.int8, device=device)
        return (
            signs,
            torch.empty(tiles, dtype=torch.float32, device=device),
            torch.empty(tiles, dtype=torch.uint8, device=device),
        )

    def _tiles_of(self, batch: Batch) -> slice:
        """The batch's tiles among all tiles."""
        first = 0 if batch.is_matrix else self._layout.matrix_tiles
        return slice(first + batch.tiles.start, first + batch.tiles.stop)

    def _selected_before(self, tiles: BatchOfTiles, k: int) -> int:
        """Upper bound on the components that are selected before these tiles."""
        start: int = tiles.batch.tiles.start
        if tiles.batch.is_matrix:
            return start * min(k, MATRIX_COMPONENTS)
        return self._layout.matrix_tiles * min(k, MATRIX_COMPONENTS) + start * min(k, VECTOR_COMPONENTS)

    def _inputs(self, gradients: Mapping[str, Tensor], rate: float, samples: int) -> GradientInput:
        from thinwire.compression.triton.compress import GradientInput  # noqa: PLC0415 - Triton is optional

        matrices = [tensor for tensor in self._layout.tensors if tensor.is_matrix]
        matrix_gradients = [gradients[tensor.name] for tensor in matrices]
        if self._second is None:
            return GradientInput(matrices, matrix_gradients, rate, 1 / samples)
        seconds = [self._second.of(tensor.name)["second"] for tensor in matrices]
        return GradientInput(matrices, matrix_gradients, rate, 1 / samples, seconds, self._second.weight)

    def amend(self, spec: DemoSpec) -> None:
        """Extract by other amendable settings from now on."""
        self._spec = spec
        self.compressor.amend(spec)

    def _begin(self) -> None:
        if self._second is not None:
            self._second.begin()
        self._extractions += 1

    def _accumulate(self, to: BatchOfTiles, added: Added, slot: int) -> None:
        if to.first in added.batches:
            return
        batch, gradients, samples = to.batch, added.gradients, added.samples
        tiles, scratch = self.compressor.buffers(to.values.shape, slot)
        if any(part.is_padded for part in batch.parts):
            tiles.zero_()
        for part in batch.parts:
            band = part.band(gradients[part.tensor.name]).to(to.values.device)
            if self._second is None:
                for band_piece, tiles_piece in part.pieces(band, tiles):
                    tiles_piece.copy_(band_piece)
                continue
            if (key := (part.tensor.name, part.rows.start, part.columns.start)) not in added.seconds:
                self._second.update_part(part, band, samples)
                added.seconds.add(key)
            root = self._second.root_of(part, scratch.view(-1)[: band.numel()].view(band.shape))
            for (band_piece, tiles_piece), (root_piece, _) in zip(
                part.pieces(band, tiles), part.pieces(root, tiles), strict=True
            ):
                torch.div(band_piece, root_piece, out=tiles_piece)
        scale = 1 / samples if self._second is None else self._second.scale / samples
        self.compressor.accumulate(to.values, tiles, added.rate * scale, slot)
        added.batches.add(to.first)

    @torch.no_grad()
    def put_back(self, sent: Sent) -> None:
        """Undo an extraction that was not counted: m ← m + βʲ·q after j further extractions. So no gradient
        is lost."""
        share = self._spec.beta ** (self._extractions - sent.extraction)
        with one_torch_thread():
            sent.add_to(self.buffer, share)

    def decode_changes(self, use: Callable[[Batch, Tensor], None], sent: Sent, rate: float) -> None:
        """Pass the change of the parameters by an update with these votes alone to `use`, one batch of tiles at a time.

        Each change is float32 [n, 64, 64] or [n, 64]; its memory is reused afterwards. On a CPU, several threads call
        `use` for different batches, in any order. rate: see `Compressor.step`."""
        batches, device = self._batches(), self.buffer.device
        firsts, places = [tiles.first for tiles in batches], [self._tiles_of(tiles.batch) for tiles in batches]

        def decode(item: tuple[BatchOfTiles, Fill], slot: int) -> None:
            tiles, fill = item
            expanded = self.compressor.expand(fill, tiles.values.shape, slot)
            use(tiles.batch, self.compressor.step(expanded, rate, slot))

        process_batches(decode, zip(batches, sent.fillers(firsts, places, device), strict=True), device)

    # what a node saves to disk, so that a restart loses no momentum

    def tensors(self) -> dict[str, Tensor]:
        """All learned tensors, by name, not copied."""
        return {"coefficients": self.buffer} | (self._second.tensors() if self._second else {})

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved tensors. Those on the momentum's device are its own from now on: a second set would be
        the most memory that a node ever takes."""
        self.buffer = state["coefficients"].to(self.buffer.device)
        if self._second is not None:
            self._second.load(state)

    def of(self, tensor: TensorTiles) -> dict[str, Tensor]:
        """The learned tensors of one parameter, by name, not copied. coefficients: of its tiles, [n, 64, 64] or [n,
        64]."""
        second = self._second.of(tensor.name) if self._second else {}
        return {"coefficients": self._layout.tiles_of(self.buffer, tensor)} | second

    def forget(self) -> None:
        for tensor in self.tensors().values():
            tensor.zero_()

    def _batches(self, *, with_matrices: bool = True) -> list[BatchOfTiles]:
        """The whole buffer, in order, or its vectors alone."""
        matrices, vectors = self._layout.matrices(self.buffer), self._layout.vectors(self.buffer)
        found, first = [], 0 if with_matrices else self._layout.matrix_components
        for batch in self._layout.batches(self.compressor.batch_tiles):
            if batch.is_matrix and not with_matrices:
                continue
            values = (matrices if batch.is_matrix else vectors)[batch.tiles]
            found.append(BatchOfTiles(batch, values, first))
            first += values.numel()
        return found


class _Chosen:
    """The components that an extraction selects. Each batch is copied to its own place as soon as it is computed."""

    def __init__(self, selected_max: int, device: torch.device) -> None:
        self._components = torch.empty(selected_max, dtype=torch.int64, device=device)
        self._values = torch.empty(selected_max, dtype=torch.float32, device=device)
        self._filled: dict[int, tuple[int, Tensor]] = {}

    def put(self, part: Extracted, first: int, start: int) -> None:
        """first: component of the whole buffer that the part's component 0 is. start: the part's place."""
        end = start + len(part.components)
        torch.add(part.components, first, out=self._components[start:end])
        self._values[start:end] = part.values
        self._filled[start] = end, part.codes

    def sent(self, extraction: int, *, has_codes: bool) -> Sent:
        filled = sorted(self._filled.items(), key=itemgetter(0))
        components, values = self._components, self._values
        if sum(end - start for start, (end, _) in filled) < len(components):  # tiles with zeros have fewer than k
            components, values = (
                torch.cat([whole[start:end] for start, (end, _) in filled]) for whole in (components, values)
            )
        none = torch.empty(0, dtype=torch.uint8, device=values.device)  # of a rank without tiles
        codes = torch.cat([none, *(codes for _, (_, codes) in filled)]) if has_codes else None
        return Sent(components, values, extraction, codes)
