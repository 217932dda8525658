"""Merged votes to steps, with the same bits on every machine.

The problem: everybody must step in the same direction everywhere, and the direction is the sign of an inverse
transform. In float it hangs on the order of summation, so replicas drift (the published code of DeMo says so in a
TODO). Rounding at the end does not help: some sum always lies next to the edge.

The sketch: scale the votes of a tile to |V'| ≤ 127 in integers, and multiply with an integer basis (at most 127, column
sums at most 5205). Pass one stays under 127·5205 = 661,035, is shifted to at most 1,292, and pass two stays under
1,292·5205 < 2²⁴: each product and each partial sum is an integer that float32 holds. So any matrix product that
multiplies whole float32 numbers and accumulates in float32 gives the same bits, in any order and on any device.

A parameter's step is then η with X's sign, or, where the contract says `clipped`, η·clamp(X / (CLIP·mean|X|), −1, 1),
the mean over the tile: parameters at which the votes say next to nothing are next to left alone (docs/convergence has
what that is worth). The sum of |X| over a tile is below 2⁵³, so a float64 holds each partial sum of it, in any order;
what follows is one division in float64, one rounding to float32, one product, a clamp: IEEE says what bits each has.

What must not happen is that the library multiplies in TF32 or bfloat16 behind our back; so precision is pinned here.
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
"""In mean magnitudes of the tile: about one standard deviation, if X were normal."""
TILE_BATCH = 1024
"""Matrix tiles worked on at a time: bounds the extra memory, 16 MiB a buffer, and has no say in the result."""
TILE_BATCH_CPU = 256
"""On a CPU, where the buffers are to stay in the caches: 4 MiB each."""

_pin_lock = threading.Lock()
_pin_depth = 0
_pin_saved: list[str] = []


@contextmanager
def pinned_precision() -> Iterator[None]:
    """Whole float32 products inside, whatever the program has set globally, which comes back afterwards.

    The setting is the process's and not the thread's, hence the count: it comes back when the last one leaves.
    Raises LocalError under autocast, which would cast the operands in spite of it.
    """
    global _pin_depth  # noqa: PLW0603
    for device_type in ("cpu", "cuda", "mps"):
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
    """V to V' = sign(V)·⌊(254·|V| + M) / 2M⌋ with M = max|V| of the tile, in integers.

    values: int16 [m], merged votes that are not 0; tile: int64 [m], which of `tiles` each belongs to. Returns V', int8
    [m] with magnitudes up to 127, and bool [tiles]: whether the tile has a vote at all.
    """
    votes = values.to(torch.int32)
    magnitude = votes.abs()
    largest = torch.zeros(tiles, dtype=torch.int32, device=values.device)
    largest.scatter_reduce_(0, tile, magnitude, "amax")
    divisor = largest[tile]
    scaled = torch.div(2 * VOTE_MAX * magnitude + divisor, 2 * divisor, rounding_mode="floor")
    return (votes.sign() * scaled).to(torch.int8), largest > 0


def tile_batch(device: torch.device) -> int:
    """How many matrix tiles are worked on at a time."""
    return TILE_BATCH_CPU if device.type == "cpu" else TILE_BATCH


@lru_cache(maxsize=16)
def _first_basis(transform: str, device: torch.device) -> Tensor:
    """Aᵀ of the first pass, which is shifted in passing: a power of two, so this is exact."""
    a = integer_basis(transform, device).T
    return a / SHIFT if transform == "dct" else a.contiguous()


def inverse_exact(scaled: Tensor, transform: str, room: Tensor) -> Tensor:
    """X = Aᵀ·V'·A of integers in float32: [n, 64, 64] or [n, 64] to the same shape, put in `scaled` or in `room`, which
    is of that shape too. Call it with precision pinned."""
    a = integer_basis(transform, scaled.device)
    if scaled.dim() == 2:
        return torch.mm(scaled, a, out=room)
    torch.bmm(_first_basis(transform, scaled.device).expand(len(scaled), -1, -1), scaled, out=room)
    if transform == "dct":
        room.add_(0.5).floor_()  # exact: no more than 21 bits, nine of them behind the point
    torch.mm(room.view(-1, TILE_EDGE), a, out=scaled.view(-1, TILE_EDGE))
    return scaled


def directions(scaled: Tensor, transform: str, step: int, room: Tensor | None = None) -> Tensor:
    """The sign of each parameter's step as the sign of a float32 that is never 0: X ± ½, with + where (position in the
    tile + step) is even. X is an integer below 2²³, so this is exact too.

    scaled: [n, 64, 64] or [n, 64], V' of whole tiles; int8, or float32, which is then worked in. room: float32 in the
    same shape, to work in as well. Source: design section 3.5.
    """
    x = _inverse_of(scaled, transform, room)[0]
    # 64 is even, so the parity of a row-major position is that of its column
    position = torch.arange(x.shape[-1], device=x.device) + step
    return x.add_(0.5 - (position % 2).to(torch.float32))


def clipped(scaled: Tensor, transform: str, rate: float, room: Tensor | None = None) -> Tensor:
    """η·clamp(X / (CLIP·mean|X|), −1, 1) of each parameter, float32; 0 in a tile without votes.

    scaled, room: as for `directions`. rate: η, a float32. Raises RuntimeError or TypeError on a device without float64,
    and the self-test then sends the replica to the CPU.
    """
    x, other = _inverse_of(scaled, transform, room)
    total = torch.abs(x, out=other).flatten(1).sum(1, dtype=torch.float64)
    unit = (rate * x[0].numel() / (CLIP * total)).to(torch.float32)  # a tile's size is a power of two
    unit = torch.where(total > 0, unit, 0.0)
    return x.mul_(unit.view(-1, *[1] * (x.dim() - 1))).clamp_(-rate, rate)


def displacements(scaled: Tensor, transform: str, scale: Tensor, room: Tensor | None = None) -> Tensor:
    """What a tile with a magnitude changes its parameters by: S·X, float32, in the shape of `scaled`.

    scaled, room: as for `directions`. scale: S of each, float32 [n, 1, 1] or [n, 1]. X is an integer below 2²⁴, so
    float32 holds it exactly, whatever the device and the order of its sums; S·X is one IEEE product, rounded once, and
    never subnormal (see `magnitudes.SCALE_MIN`). So this has the same bits everywhere.
    """
    return _inverse_of(scaled, transform, room)[0].mul_(scale)


def _inverse_of(scaled: Tensor, transform: str, room: Tensor | None) -> tuple[Tensor, Tensor]:
    """X, and a tensor of the same shape that is free again."""
    scaled = scaled.to(torch.float32)
    room = torch.empty_like(scaled) if room is None else room
    with pinned_precision():
        x = inverse_exact(scaled, transform, room)
    return x, scaled if x is room else room
