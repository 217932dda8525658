"""Launches the fused kernel of `triton.kernel` for all matrix tiles of a model at once.

Import this module only where Triton is installed. Use it for tensors on a card, or with TRITON_INTERPRET=1, which runs
the kernel in numpy. `fused` makes that decision, after a `trial`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.compression.compress import Extracted
from thinwire.compression.triton.kernel import FIELDS, MASK_COMPONENTS, compress, list_components
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.magnitudes import TABLE, UNIT
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TensorTiles
from thinwire_proto.exact.transform import float_basis
from thinwire_proto.out_of_memory import retry_out_of_memory

ALIGNED_BYTES = 16
"""If all rows of the gradients start at a multiple of this, the kernel reads four numbers at a time."""


@dataclass(frozen=True)
class Launch:
    """Launch settings of the kernel.

    warps: of a program. registers: limit for each thread; None for no limit (AMD cards accept none). precision: of the
    products, by Triton's name."""

    warps: int
    registers: int | None
    precision: str

    def options(self) -> Mapping[str, int]:
        limit = {} if self.registers is None or torch.version.hip else {"maxnreg": self.registers}
        return {"num_warps": self.warps} | limit


TF32_CAPABILITY = 8
"""NVIDIA's cards have TF32 since Ampere."""
LAUNCHES = (Launch(4, 128, "tf32"), Launch(4, 168, "tf32"), Launch(4, 255, "tf32"), Launch(8, 80, "tf32"))
"""Which of them is fastest depends on the card. TF32 has 11 bits, enough for values that never leave the node."""
ANYWHERE = Launch(8, None, "ieee")
"""Runs on cards without TF32, and in the interpreter."""
LIST_WARPS = 1
"""Of a program that lists one tile's components. It has little to do, so more warps would wait for each other."""


def launches(device: torch.device) -> tuple[Launch, ...]:
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device)[0] < TF32_CAPABILITY:
        return (ANYWHERE,)
    return LAUNCHES


@dataclass(frozen=True)
class GradientInput:
    """The input of the momentum: C ← β·C + rate·T(P(share·g)).

    tensors: all matrices of the model, in order. gradients: one for each, float32 and contiguous, in the parameter's
    shape. seconds: the second moments in the same form, with preconditioning; updated in place. second_weight: v̂ is v
    / second_weight."""

    tensors: Sequence[TensorTiles]
    gradients: Sequence[Tensor]
    rate: float
    share: float = 1.0
    seconds: Sequence[Tensor] = ()
    second_weight: float = 1.0


class FusedCompressor:
    """Compresses the momentum of one model on one card. Keeps the tables that the kernel reads."""

    def __init__(self, spec: DemoSpec, device: torch.device, launch: Launch) -> None:
        self.launch = launch
        self._spec = spec
        self._basis = float_basis(device).contiguous()
        self._levels = (torch.from_numpy(TABLE).to(torch.float64) * UNIT).to(torch.float32).to(device)
        self._addresses: tuple[int, ...] = ()
        self._table = torch.zeros(1, FIELDS, dtype=torch.int64, device=device)
        self._tensor_of = torch.zeros(1, dtype=torch.int32, device=device)
        self._tiles: tuple[int, ...] = ()
        self._aligned = False

    def extract(self, coefficients: Tensor, k: int, inputs: GradientInput | None = None) -> Extracted:
        """Accumulate the gradients, if given, and extract the k largest components of each tile.

        coefficients: float32 [n, 64, 64], changed in place; with `inputs`, all tiles of its tensors. Raises
        ValueError if the kernel cannot read the gradients."""
        n, k, device = len(coefficients), min(k, MATRIX_COMPONENTS), coefficients.device
        coded = self._spec.magnitude == "tile"

        def room() -> tuple[Tensor, Tensor, Tensor, Tensor]:
            masks = torch.empty(n, MATRIX_COMPONENTS // MASK_COMPONENTS, dtype=torch.int32, device=device)
            codes = torch.empty(n if coded else 1, dtype=torch.uint8, device=device)
            return masks, torch.empty(n, dtype=torch.int32, device=device), torch.empty(n, device=device), codes

        masks, counts, magnitudes, codes = retry_out_of_memory(room)
        if inputs is not None:
            self._update_tables(inputs)
        with torch.cuda.device_of(coefficients):  # type: ignore[no-untyped-call]  # a launch goes to the current card
            if n:
                compress[(n,)](
                    coefficients, self._table, self._tensor_of, self._basis, self._levels,
                    masks, counts, magnitudes, codes,
                    k, *self._scalars(inputs), FED=inputs is not None, ADAM=bool(inputs and inputs.seconds),
                    ALIGNED=self._aligned, CODED=coded, PRECISION=self.launch.precision, **self.launch.options(),
                )  # fmt: skip
            # the momentum has changed, so that these alone may be repeated
            components, values = retry_out_of_memory(lambda: _listed(masks, counts, magnitudes, k))
            voted = retry_out_of_memory(lambda: codes[counts > 0]) if coded else codes[:0]
        return Extracted(components, values, voted)

    def _scalars(self, inputs: GradientInput | None) -> tuple[float, ...]:
        """β, η, share, β₂, 1 / weight."""
        fed = (inputs.rate, inputs.share) if inputs else (0.0, 1.0)
        weight = inputs.second_weight if inputs else 1.0
        return (self._spec.beta, *fed, self._spec.precondition_beta, 1 / weight)

    def _update_tables(self, inputs: GradientInput) -> None:
        """Write the tensors' addresses to the tables. Does nothing if no tensor has moved."""
        for values in (inputs.gradients, inputs.seconds) if inputs.seconds else (inputs.gradients,):
            for tensor, value in zip(inputs.tensors, values, strict=True):
                self._check(value, tensor)
        seconds = inputs.seconds or inputs.gradients
        addresses = tuple(tensor.data_ptr() for pair in zip(inputs.gradients, seconds, strict=True) for tensor in pair)
        if addresses == self._addresses:
            return
        device = self._table.device
        tiles = tuple(tensor.tiles for tensor in inputs.tensors)
        if tiles != self._tiles:
            numbers = torch.arange(len(tiles), dtype=torch.int32)
            self._tensor_of = numbers.repeat_interleave(torch.tensor(tiles)).to(device)
            self._tiles = tiles
        rows = [
            [
                gradient.data_ptr(),
                second.data_ptr(),
                tensor.rows,
                tensor.columns,
                tensor.first_tile,
                tensor.tile_columns,
            ]
            for tensor, gradient, second in zip(inputs.tensors, inputs.gradients, seconds, strict=True)
        ]
        self._table = torch.tensor(rows, dtype=torch.int64).to(device)
        row_bytes = (tensor.columns * self._basis.element_size() for tensor in inputs.tensors)
        self._aligned = all(size % ALIGNED_BYTES == 0 for size in (*addresses, *row_bytes))
        self._addresses = addresses

    def _check(self, value: Tensor, tensor: TensorTiles) -> None:
        """Raise ValueError unless the tensor has the expected layout; the kernel receives only an address."""
        readable = value.dtype == torch.float32 and value.is_contiguous() and value.device == self._basis.device
        if not readable or value.numel() != tensor.rows * tensor.columns:
            shape = f"{tensor.rows} × {tensor.columns}"
            raise ValueError(f"{tensor.name} is not a contiguous float32 tensor of {shape} on the card")


def _listed(masks: Tensor, counts: Tensor, magnitudes: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Components and values as in `compress.Extracted`, from the output of the kernel."""
    n = len(counts)
    components = torch.empty(n * k, dtype=torch.int64, device=masks.device)
    values = torch.empty(n * k, dtype=torch.float32, device=masks.device)
    if n == 0:
        return components, values
    ends = counts.cumsum(0)
    list_components[(n,)](masks, counts, ends, magnitudes, components, values, num_warps=LIST_WARPS)
    total = int(ends[-1])  # waits for the card, so it comes last
    return components[:total], values[:total]
