"""Decode merged votes to parameter steps, with the same bits on every machine.

The problem: all replicas must step in the same direction, and the direction is the sign of an inverse transform. In
floating point the result depends on the order of summation, so replicas drift apart (the published DeMo code, arXiv
2411.19870, has a TODO about this). Rounding at the end does not help, because some sum always lies next to the rounding
edge.

The sketch: scale the votes of a tile to integers |V'| ≤ 127 and multiply by an integer basis (entries at most 127,
column sums at most 5205). Pass one stays under 127·5205 = 661,035 and is shifted to at most 1,292. Pass two stays under
1,292·5205 < 2²⁴. So every product and every partial sum is an integer that float32 holds exactly. Any matrix product
that multiplies full float32 numbers and accumulates in float32 gives the same bits, in any order and on any device.

A parameter's step is η with the sign of X. If the contract says `clipped`, it is η·clamp(X / (CLIP·mean|X|), −1, 1)
with the mean over the tile: parameters with weak votes hardly move (docs/convergence measures the gain). The sum of |X|
over a tile is below 2⁵³, so float64 holds each partial sum exactly, in any order. One float64 division, one rounding to
float32, one product and one clamp follow; IEEE 754 defines the bits of each.

The library must not switch to TF32 or bfloat16 on its own, so this module pins the precision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from thinwire_proto.contract import TILE_EDGE
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.transform import integer_basis

VOTE_MAX = 127
SHIFT = 512
CLIP = 1.25
"""In units of the tile's mean |X|: about one standard deviation if X were normal."""
TILE_BATCH = 1024
"""Matrix tiles processed at a time. Bounds the extra memory (16 MiB a buffer); does not change the result."""
TILE_BATCH_CPU = 128
"""The same on a CPU, where buffers of 2 MiB stay in the caches."""

_pin_lock = threading.Lock()
_pin_depth = 0
_pin_saved: list[str] = []


@contextmanager
def pinned_precision() -> Iterator[None]:
    """Compute in full float32 inside the block, and restore the program's global setting afterwards.

    The setting belongs to the process, not to the thread. A counter restores it when the last block ends. Raises
    LocalError under autocast, which would cast the operands regardless of the setting.
    """
    global _pin_depth  # noqa: PLW0603
    for device_type in ("cpu", "cuda", "xpu", "mps"):
        if torch.is_autocast_enabled(device_type):
            raise LocalError(f"the exact decode refuses to run under autocast ({device_type}): leave the block first")
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    with _pin_lock:
        if _pin_depth == 0:
            _pin_saved[:] = [backend.fp32_precision for backend in backends]
            for backend in backends:
                backend.fp32_precision = "ieee"
        _pin_depth += 1
    try:
        yield
    finally:
        with _pin_lock:
            _pin_depth -= 1
            if _pin_depth == 0:
                for backend, saved in zip(backends, _pin_saved, strict=True):
                    backend.fp32_precision = saved


def scale_votes(values: Tensor, tile: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
    """Scale votes to V' = sign(V)·⌊(254·|V| + M) / 2M⌋, where M = max|V| of the tile.

    values: int16 [m], nonzero merged votes. tile: int64 [m], the tile of each vote, below `tiles`. Returns V', integers
    in float32 [m] with magnitudes up to 127, and bool [tiles]: whether the tile has any vote.

    float32 holds each number here exactly but the quotient: 254·32768 + 32768 < 2²⁴. A device may round the quotient to
    the next integer, and the remainder shows it. Integer division takes several times as long.
    """
    votes = values.to(torch.float32)
    magnitude = votes.abs()
    largest = torch.zeros(tiles, dtype=torch.float32, device=values.device)
    largest.scatter_reduce_(0, tile, magnitude, "amax")
    divisor = largest.index_select(0, tile)
    dividend = 2 * VOTE_MAX * magnitude + divisor
    divisor = 2 * divisor
    scaled = (dividend / divisor).floor_()
    remainder = dividend - scaled * divisor
    scaled += (remainder >= divisor).to(torch.float32) - (remainder < 0).to(torch.float32)
    return torch.copysign(scaled, votes), largest > 0


def tile_batch(device: torch.device) -> int:
    """Number of matrix tiles to process at a time on a device."""
    return TILE_BATCH_CPU if device.type == "cpu" else TILE_BATCH


def level_factor(levels: int) -> int:
    """The factor of each level before the inverse. It brings levels near VOTE_MAX, because the shift between the two
    passes rounds to integers: of three levels themselves it would leave hardly more than one unit."""
    return VOTE_MAX // levels


@lru_cache(maxsize=16)
def _first_basis(device: torch.device) -> Tensor:
    """Aᵀ of the first pass, already divided by SHIFT. SHIFT is a power of two, so the division is exact."""
    return integer_basis(device).T / SHIFT


def inverse_exact(scaled: Tensor, buffer: Tensor) -> Tensor:
    """X = Aᵀ·V'·A as integers in float32, for V' of shape [n, 64, 64] or [n, 64]; same shape.

    The result is written into `scaled` or into `buffer`, which has the same shape. Call it with precision pinned.
    """
    a = integer_basis(scaled.device)
    if scaled.dim() == 2:
        return torch.mm(scaled, a, out=buffer)
    torch.bmm(_first_basis(scaled.device).expand(len(scaled), -1, -1), scaled, out=buffer)
    buffer.add_(0.5).floor_()  # exact: at most 21 bits, nine of them fractional
    torch.mm(buffer.view(-1, TILE_EDGE), a, out=scaled.view(-1, TILE_EDGE))
    return scaled


def directions(scaled: Tensor, step: int, buffer: Tensor | None = None) -> Tensor:
    """The direction of each parameter's step, as the sign of a float32 that is never 0.

    The value is X ± ½, with + where (position in the tile + step) is even. X is an integer below 2²³, so the sum is
    exact. The alternating tie-break keeps parameters with X = 0 from drifting one way.

    scaled: [n, 64, 64] or [n, 64], V' of whole tiles; int8, or float32, which is then overwritten. buffer: float32
    scratch space of the same shape.
    """
    x = _inverse_of(scaled, buffer)[0]
    # 64 is even, so the parity of a row-major position is that of its column
    position = torch.arange(x.shape[-1], device=x.device) + step
    return x.add_(0.5 - (position % 2).to(torch.float32))


def clipped(scaled: Tensor, rate: float, buffer: Tensor | None = None) -> Tensor:
    """η·clamp(X / (CLIP·mean|X|), −1, 1) of each parameter, float32; 0 in a tile without votes.

    scaled, buffer: as for `directions`. rate: η, a float32. Raises RuntimeError or TypeError on a device without
    float64; the self-test then moves the replica to the CPU.
    """
    x, other = _inverse_of(scaled, buffer)
    total = torch.abs(x, out=other).flatten(1).sum(1, dtype=torch.float64)
    unit = (rate * x[0].numel() / (CLIP * total)).to(torch.float32)  # a tile's size is a power of two
    unit = torch.where(total > 0, unit, 0.0)
    return x.mul_(unit.view(-1, *[1] * (x.dim() - 1))).clamp_(-rate, rate)


def displacements(scaled: Tensor, scale: Tensor, buffer: Tensor | None = None) -> Tensor:
    """The change S·X of tiles that have a magnitude, float32, in the shape of `scaled`.

    scaled, buffer: as for `directions`. scale: S of each tile, float32 [n, 1, 1] or [n, 1]. X is an integer below 2²⁴,
    so float32 holds it exactly on any device and in any order of summation. S·X is one IEEE product, rounded once, and
    never subnormal (see `magnitudes.SCALE_MIN`). So the bits are the same everywhere.
    """
    return _inverse_of(scaled, buffer)[0].mul_(scale)


def _inverse_of(scaled: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns X, and a scratch tensor of the same shape."""
    scaled = scaled.to(torch.float32)
    buffer = torch.empty_like(scaled) if buffer is None else buffer
    with pinned_precision():
        x = inverse_exact(scaled, buffer)
    return x, scaled if x is buffer else buffer
