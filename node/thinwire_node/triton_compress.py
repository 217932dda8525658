"""The kernel of `triton_kernel` as the compressor uses it: all matrix tiles of a model in one launch.

Import this module only where Triton is installed, and for tensors on a card (or with TRITON_INTERPRET=1, which runs the
kernel in numpy); `fused` decides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire_node.triton_kernel import FIELDS, compress
from thinwire_proto.contract import DemoSpec
from thinwire_proto.magnitudes import TABLE, UNIT
from thinwire_proto.tiles import MATRIX_COMPONENTS, TensorTiles
from thinwire_proto.transform import float_basis

NEGATIVE = 1 << 12  # of a position as the kernel writes it
ALIGNED_TO = 16  # bytes


@dataclass(frozen=True)
class Launch:
    """How the kernel is run. warps: of a program. registers: of a thread at most, None for as many as it likes.
    precision: of its products, as Triton names them; "tf32" has 11 bits, which is plenty for the node's own part."""

    warps: int = 4
    registers: int | None = 128
    precision: str = "tf32"


@dataclass(frozen=True)
class Feed:
    """What feeds the momentum: m ← β·m + η·P(share·g).

    gradients: of each matrix, float32 and contiguous, in the parameter's shape. seconds: their second moments, likewise,
    where there is preconditioning; they go on in place. second_weight: what v̂ = v / weight is.
    """

    tensors: Sequence[TensorTiles]
    gradients: Sequence[Tensor]
    seconds: Sequence[Tensor] | None
    rate: float
    share: float = 1.0
    second_weight: float = 1.0


@dataclass(frozen=True)
class Kept:
    """What a cut keeps of n matrix tiles. positions: int16 [n, k], place in the tile, plus NEGATIVE where the sign is
    negative; of row i the first counts[i] mean something, ascending. counts: int32 [n]. magnitudes: float32 [n], what a
    vote counts as. codes: uint8 [n], see `magnitudes.coded`, where the contract has magnitudes travel."""

    positions: Tensor
    counts: Tensor
    magnitudes: Tensor
    codes: Tensor | None

    def sent(self, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Components, values and codes as in `momentum.Sent`; `first` is the first component of these tiles."""
        n, k = self.positions.shape
        device = self.positions.device
        slots = torch.arange(k, device=device) < self.counts[:, None]
        written = self.positions[slots]
        counts = self.counts.to(torch.int64)
        starts = torch.arange(first, first + n * MATRIX_COMPONENTS, MATRIX_COMPONENTS, device=device)
        total = len(written)
        components = starts.repeat_interleave(counts, output_size=total)
        components += (written & (NEGATIVE - 1)).to(torch.int64)
        values = self.magnitudes.repeat_interleave(counts, output_size=total)
        values = torch.where(written >= NEGATIVE, -values, values)
        codes = torch.empty(0, dtype=torch.uint8, device=device) if self.codes is None else self.codes[self.counts > 0]
        return components, values, codes


class Compressor:
    """Runs the kernel on the tiles of one model; keeps the tables that it reads."""

    def __init__(self, spec: DemoSpec, device: torch.device, launch: Launch) -> None:
        self._spec = spec
        self._launch = launch
        self._basis = float_basis(spec.transform, device).contiguous()
        self._levels = (torch.from_numpy(TABLE).to(torch.float64) * UNIT).to(torch.float32).to(device)
        self._addresses: tuple[int, ...] = ()
        self._table = torch.zeros(1, FIELDS, dtype=torch.int64, device=device)
        self._tensor_of = torch.zeros(1, dtype=torch.int32, device=device)
        self._aligned = False
        self._nothing = torch.zeros(1, device=device)

    def cut(self, tiles: Tensor, k: int, feed: Feed | None = None, direction: Tensor | None = None) -> Kept:
        """Feed the momentum, if there is something to, and take the k largest components of each tile out of it.

        tiles: float32 [n, 64, 64], the momentum, changed in place; all tiles of `feed.tensors`, in order. direction:
        int8 [n, 64, 64], written; see `momentum.Sent`.
        """
        n, device = len(tiles), tiles.device
        k = min(k, MATRIX_COMPONENTS)
        coded = self._spec.magnitude == "tile"
        positions = torch.empty(n, k, dtype=torch.int16, device=device)
        counts = torch.empty(n, dtype=torch.int32, device=device)
        magnitudes = torch.empty(n, device=device)
        codes = torch.empty(n if coded else 1, dtype=torch.uint8, device=device)
        if feed is not None:
            self._tell(feed)
        adam = feed is not None and feed.seconds is not None
        if n:
            compress[(n,)](
                tiles, self._table, self._tensor_of, self._basis, self._levels,
                positions, counts, magnitudes, codes, codes if direction is None else direction,
                k, self._spec.beta, feed.rate if feed else 0.0, feed.share if feed else 1.0,
                self._spec.precondition_beta, feed.second_weight if feed else 1.0, self._spec.alpha,
                FED=feed is not None, ADAM=adam, ALIGNED=self._aligned,
                MAGNITUDE=self._spec.magnitude, AHEAD=direction is not None, PRECISION=self._launch.precision,
                num_warps=self._launch.warps, **_limit(self._launch),
            )  # fmt: skip
        return Kept(positions, counts, magnitudes, codes if coded else None)

    def _tell(self, feed: Feed) -> None:
        """Bring the tables up to where the tensors lie now; nothing to do where they have not moved."""
        seconds = feed.seconds or feed.gradients
        addresses = tuple(tensor.data_ptr() for pair in zip(feed.gradients, seconds, strict=True) for tensor in pair)
        if addresses == self._addresses:
            return
        rows = [
            [gradient.data_ptr(), second.data_ptr(), of.rows, of.columns, of.first_tile, of.tile_columns]
            for of, gradient, second in zip(feed.tensors, feed.gradients, seconds, strict=True)
        ]
        device = self._table.device
        self._table = torch.tensor(rows, dtype=torch.int64, device=device)
        if not self._addresses:
            numbers = torch.arange(len(feed.tensors), dtype=torch.int32)
            self._tensor_of = numbers.repeat_interleave(torch.tensor([of.tiles for of in feed.tensors])).to(device)
        lines = (of.columns * feed.gradients[0].element_size() for of in feed.tensors)
        self._aligned = all(size % ALIGNED_TO == 0 for size in (*addresses, *lines))
        self._addresses = addresses


def _limit(launch: Launch) -> Mapping[str, int]:
    """A card of AMD's takes no limit on registers."""
    return {} if launch.registers is None or torch.version.hip else {"maxnreg": launch.registers}
