"""The kernel of `triton_kernel` as the momentum uses it: all matrix tiles of a model in one launch.

Import this module only where Triton is installed, and use it for tensors on a card, or with TRITON_INTERPRET=1, which
runs the kernel in numpy. `fused` decides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire_node.compression.compress import Kept
from thinwire_node.compression.triton.kernel import FIELDS, compress
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.magnitudes import TABLE, UNIT
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TensorTiles
from thinwire_proto.exact.transform import float_basis

NEGATIVE = 1 << 12
"""Of a position as the kernel writes it."""
ALIGNED_BYTES = 16
"""Gradients whose lines all begin at a multiple of it are read four numbers at a time."""


@dataclass(frozen=True)
class Launch:
    """How the kernel is run. warps: of a program. registers: of a thread at most, None for as many as it likes; cards
    of AMD's take no such limit. precision: of the products, by Triton's name."""

    warps: int
    registers: int | None
    precision: str

    def options(self) -> Mapping[str, int]:
        limit = {} if self.registers is None or torch.version.hip else {"maxnreg": self.registers}
        return {"num_warps": self.warps} | limit


LAUNCHES = (Launch(8, 128, "tf32"), Launch(8, 80, "tf32"), Launch(4, 128, "tf32"), Launch(4, 168, "tf32"))
"""Which of them is the fastest depends on the card. TF32 has 11 bits, plenty for what only the node itself sees."""
ANYWHERE = Launch(8, None, "ieee")
"""Runs on cards without TF32, and in the interpreter."""


@dataclass(frozen=True)
class Feed:
    """What feeds the momentum: C ← β·C + rate·T(P(share·g)).

    tensors: all matrices of the model, in order. gradients: of each, float32 and contiguous, in the parameter's shape.
    seconds: their second moments, likewise, where there is preconditioning; they go on in place. second_weight: v̂ is
    v / second_weight.
    """

    tensors: Sequence[TensorTiles]
    gradients: Sequence[Tensor]
    rate: float
    share: float = 1.0
    seconds: Sequence[Tensor] = ()
    second_weight: float = 1.0


class FusedCompressor:
    """For the momentum of one model, on one card. Keeps the tables that the kernel reads."""

    def __init__(self, spec: DemoSpec, device: torch.device, launch: Launch) -> None:
        self.launch = launch
        self._spec = spec
        self._basis = float_basis(spec.transform, device).contiguous()
        self._levels = (torch.from_numpy(TABLE).to(torch.float64) * UNIT).to(torch.float32).to(device)
        self._addresses: tuple[int, ...] = ()
        self._table = torch.zeros(1, FIELDS, dtype=torch.int64, device=device)
        self._tensor_of = torch.zeros(1, dtype=torch.int32, device=device)
        self._aligned = False

    def extract(self, coefficients: Tensor, k: int, feed: Feed | None = None) -> Kept:
        """Feed the momentum, if there is something to, and take the k largest of each tile out of it.

        coefficients: float32 [n, 64, 64], changed in place; with `feed`, all tiles of its tensors. Raises ValueError if
        the kernel cannot read the feed.
        """
        n, k, device = len(coefficients), min(k, MATRIX_COMPONENTS), coefficients.device
        coded = self._spec.magnitude == "tile"
        positions = torch.empty(n, k, dtype=torch.int16, device=device)
        counts = torch.empty(n, dtype=torch.int32, device=device)
        magnitudes = torch.empty(n, device=device)
        codes = torch.empty(n if coded else 1, dtype=torch.uint8, device=device)
        if feed is not None:
            self._tell(feed)
        if n:
            with torch.cuda.device_of(coefficients):  # type: ignore[no-untyped-call]  # a launch goes to the current card
                compress[(n,)](
                    coefficients, self._table, self._tensor_of, self._basis, self._levels,
                    positions, counts, magnitudes, codes,
                    k, *self._scalars(feed), FED=feed is not None, ADAM=bool(feed and feed.seconds),
                    ALIGNED=self._aligned, CODED=coded, PRECISION=self.launch.precision, **self.launch.options(),
                )  # fmt: skip
        components, values = _listed(positions, counts, magnitudes)
        return Kept(components, values, codes[counts > 0] if coded else codes[:0])

    def _scalars(self, feed: Feed | None) -> tuple[float, ...]:
        """β, η, share, β₂, weight, α."""
        fed = (feed.rate, feed.share) if feed else (0.0, 1.0)
        weight = feed.second_weight if feed else 1.0
        return (self._spec.beta, *fed, self._spec.precondition_beta, weight, self._spec.alpha)

    def _tell(self, feed: Feed) -> None:
        """Bring the tables up to where the tensors lie now; nothing to do where none has moved."""
        for of, *both in zip(feed.tensors, feed.gradients, *([feed.seconds] if feed.seconds else []), strict=True):
            for tensor in both:
                self._check(tensor, of)
        seconds = feed.seconds or feed.gradients
        addresses = tuple(tensor.data_ptr() for pair in zip(feed.gradients, seconds, strict=True) for tensor in pair)
        if addresses == self._addresses:
            return
        device = self._table.device
        if not self._addresses:
            numbers = torch.arange(len(feed.tensors), dtype=torch.int32)
            self._tensor_of = numbers.repeat_interleave(torch.tensor([of.tiles for of in feed.tensors])).to(device)
        rows = [
            [gradient.data_ptr(), second.data_ptr(), of.rows, of.columns, of.first_tile, of.tile_columns]
            for of, gradient, second in zip(feed.tensors, feed.gradients, seconds, strict=True)
        ]
        self._table = torch.tensor(rows, dtype=torch.int64).to(device)
        lines = (of.columns * self._basis.element_size() for of in feed.tensors)
        self._aligned = all(size % ALIGNED_BYTES == 0 for size in (*addresses, *lines))
        self._addresses = addresses

    def _check(self, tensor: Tensor, of: TensorTiles) -> None:
        """The kernel is told an address, and believes it."""
        right = tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.device == self._basis.device
        if not right or tensor.numel() != of.rows * of.columns:
            raise ValueError(f"{of.name} is not a contiguous float32 tensor of {of.rows} × {of.columns} on the card")


def _listed(positions: Tensor, counts: Tensor, magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Components and values as in `compress.Kept`, from what the kernel writes: see there."""
    n, k = positions.shape
    device = positions.device
    written = positions[torch.arange(k, device=device) < counts[:, None]]
    repeats, total = counts.to(torch.int64), len(written)
    starts = torch.arange(0, n * MATRIX_COMPONENTS, MATRIX_COMPONENTS, device=device)
    components = starts.repeat_interleave(repeats, output_size=total).add_(written & (NEGATIVE - 1))
    values = magnitudes.repeat_interleave(repeats, output_size=total)
    return components, torch.where(written >= NEGATIVE, -values, values)
