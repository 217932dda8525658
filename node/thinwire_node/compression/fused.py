"""Whether the compressor runs as one kernel on this card, and how: decided once for a device, by trying.

A kernel that was compiled for a card that nobody here has is not to be trusted unseen. So it is compared with the same
in plain torch first, on tiles that are hard to choose from; and since registers are what it is short of, how many of
them are best is measured. Where Triton is missing, or anything is wrong, torch does the work operation by operation.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire_node.compression.compress import Kept
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.magnitudes import TABLE, UNIT, coded
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.transform import float_basis

if TYPE_CHECKING:
    from thinwire_node.compression.triton.compress import FusedCompressor

log = logging.getLogger("thinwire.node")

TF32_CAPABILITY = 8
COUNTS_TRIED = (1, 32, 4096)
TRIED = TileLayout([Parameter(name=str(n), shape=shape) for n, shape in enumerate([(100, 70), (64, 128), (3, 5, 40)])])
TIMED_TILES = 2048
"""Enough to fill a card; 96 MB for a moment, and as much again with preconditioning."""
TIMED_RUNS = 7
TIMED_K = 32
FED_TOLERANCE = 4e-3
"""Of the largest coefficient: what TF32 may be off by, and no wrong index is."""


def make_fused(spec: DemoSpec, device: torch.device) -> FusedCompressor | None:
    """For a momentum on this device; None where torch is to do the work. What was decided is in the log, once."""
    if device.type != "cuda":  # ROCm says so too
        return None
    plain = spec.model_copy(update={"k": 1, "k_policy": "fixed"})  # what else it says is the kernel's affair
    made = _decided(plain.model_dump_json(), device)
    return None if made is None else type(made)(spec, device, made.launch)


@lru_cache(maxsize=16)
def _decided(spec_json: str, device: torch.device) -> FusedCompressor | None:
    made, why = decide(DemoSpec.model_validate_json(spec_json), device)
    (log.warning if made is None else log.info)("compressor on %s: %s", device, why)
    return made


def decide(spec: DemoSpec, device: torch.device, timed_tiles: int = TIMED_TILES) -> tuple[FusedCompressor | None, str]:
    """The fastest way to run the kernel of those that agree with torch, and why, in words."""
    try:
        from thinwire_node.compression.triton.compress import ANYWHERE, LAUNCHES, FusedCompressor  # noqa: PLC0415
    except ImportError as error:
        return None, f"operation by operation in torch, since Triton is not there ({error})"
    found: list[tuple[float, FusedCompressor]] = []
    problem = ""
    for launch in LAUNCHES if _has_tf32(device) else (ANYWHERE,):
        made = FusedCompressor(spec, device, launch)
        try:
            problem = disagreement(made, spec, device)
            if not problem:
                found.append((_seconds(made, spec, device, timed_tiles), made))
        except Exception as error:  # noqa: BLE001 - a compiler may fail in any way, and torch does without it
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if not found:
        return None, f"operation by operation in torch, since the fused kernel is not right here ({problem})"
    found.sort(key=lambda pair: pair[0])
    made = found[0][1]
    tried = "; ".join(f"{one.launch} {took / timed_tiles / MATRIX_COMPONENTS:.2g}" for took, one in found)
    return made, f"the fused kernel, as the first of these, in seconds a parameter: {tried}"


def _has_tf32(device: torch.device) -> bool:
    """NVIDIA's cards since Ampere do."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device)[0] >= TF32_CAPABILITY


def disagreement(made: FusedCompressor, spec: DemoSpec, device: torch.device) -> str:
    """What the kernel does otherwise than the same in plain torch, in words; "" if nothing."""
    for k in COUNTS_TRIED:
        wrong = _disagreement_in_choice(made, spec, device, hard_tiles(), k)
        if wrong:
            return f"k = {k}: {wrong}"
    return _disagreement_in_feed(made, spec, device)


def hard_tiles() -> Tensor:
    """Coefficients [n, 64, 64] that are hard to choose from: equals, few, one, none, close together, far apart."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(64, 64, generator=generator)
    few = torch.zeros(64, 64)
    few.view(-1)[torch.randperm(MATRIX_COMPONENTS, generator=generator)[:20]] = normal.view(-1)[:20]
    one = torch.zeros(64, 64)
    one[63, 0] = -1e-3
    equals = torch.randint(-3, 4, (64, 64), generator=generator).to(torch.float32)
    close = normal.sign() * (1 + 1e-6 * normal.abs())
    apart = normal * torch.logspace(-15, 15, MATRIX_COMPONENTS).view(64, 64)
    return torch.stack([normal, few, one, torch.zeros(64, 64), equals, close, apart, torch.full((64, 64), -0.5)])


def chosen(coefficients: Tensor, k: int) -> Tensor:
    """Which are the k largest of each tile: bool, of the same shape [n, 64, 64]. Of equals those at the lowest places,
    and no zeros. By sorting, on the CPU."""
    flat = coefficients.flatten(1).abs()
    places = flat.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return (torch.zeros_like(flat, dtype=torch.bool).scatter_(1, places, True) & (flat > 0)).view(coefficients.shape)


def _on_cpu(kept: Kept) -> tuple[Tensor, Tensor, Tensor]:
    return kept.components.cpu(), kept.values.cpu(), kept.codes.cpu()


def _disagreement_in_choice(
    made: FusedCompressor, spec: DemoSpec, device: torch.device, coefficients: Tensor, k: int
) -> str:
    after = coefficients.to(device, copy=True)
    components, values, codes = _on_cpu(made.extract(after, k))
    kept = chosen(coefficients, k)
    mean = (coefficients.double().abs() * kept).sum((1, 2)) / kept.sum((1, 2)).clamp(min=1)
    if spec.magnitude == "tile":
        ideal, mean = coded(mean.to(torch.float32))
        kept &= (mean > 0)[:, None, None]
        own = kept.any(2).any(1)
        if len(codes) != own.sum() or (codes.int() - ideal[own].int()).abs().amax().item() > 1:
            return "codes differ"
        mean[own] = torch.from_numpy(TABLE * UNIT)[codes.long()].to(mean.dtype)
    if not torch.equal(components, kept.view(-1).nonzero().view(-1)):
        return "other components are kept"
    votes = kept * coefficients.sign() * mean.view(-1, 1, 1)
    if not torch.allclose(values, votes.view(-1)[components].to(torch.float32), rtol=1e-5, atol=0):
        return "votes count as something else"
    rest = (coefficients - spec.alpha * votes).to(torch.float32)
    scale = coefficients.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    return "" if ((after.cpu() - rest).abs() / scale).amax() < 1e-5 else "something else is left"


def _disagreement_in_feed(made: FusedCompressor, spec: DemoSpec, device: torch.device) -> str:
    from thinwire_node.compression.triton.compress import Feed  # noqa: PLC0415

    generator = torch.Generator().manual_seed(2)
    coefficients, expected = torch.randn(2, TRIED.tiles, 64, 64, generator=generator)
    gradients = [torch.randn(of.rows, of.columns, generator=generator) for of in TRIED.tensors]
    seconds = [torch.rand(of.rows, of.columns, generator=generator) for of in TRIED.tensors]
    rate, share, weight, beta = 0.5, 0.25, 0.75, spec.precondition_beta
    expected.zero_()
    after = [beta * v + (1 - beta) * (share * g) ** 2 for v, g in zip(seconds, gradients, strict=True)]
    for of, gradient, v in zip(TRIED.tensors, gradients, after, strict=True):
        fed = gradient * share / ((v / weight).sqrt() + 1e-8) if spec.precondition == "adam" else gradient * share
        TRIED.add_into(expected.view(-1), of, fed.view(of.shape), rate)
    b = float_basis(spec.transform, torch.device("cpu"))
    expected = spec.beta * coefficients + b @ expected @ b.T
    here = [v.to(device) for v in seconds] if spec.precondition == "adam" else []
    there = coefficients.to(device)
    feed = Feed(TRIED.tensors, [gradient.to(device) for gradient in gradients], rate, share, here, weight)
    components, values, _ = _on_cpu(made.extract(there, 8, feed))
    got = there.cpu()
    got.view(-1)[components] += spec.alpha * values
    if not (got - expected).abs().amax() < FED_TOLERANCE * expected.abs().amax():
        return "gradients come to something else"
    same = all(torch.allclose(v.cpu(), ideal, rtol=1e-5) for v, ideal in zip(here, after, strict=False))
    return "" if same else "second moments come to something else"


def _seconds(made: FusedCompressor, spec: DemoSpec, device: torch.device, tiles: int) -> float:
    """Of a launch on so many tiles, fed by gradients, listing what is kept included: the median of a few."""
    from thinwire_node.compression.triton.compress import Feed  # noqa: PLC0415

    layout = TileLayout([Parameter(name="w", shape=(64 * tiles, 64))])
    shape = layout.tensors[0].shape
    coefficients, gradient = torch.randn(tiles, 64, 64, device=device), torch.randn(shape, device=device)
    seconds = [torch.rand(shape, device=device)] if spec.precondition == "adam" else []
    feed = Feed(layout.tensors, [gradient], 1.0, 1.0, seconds)
    spans = []
    for _ in range(TIMED_RUNS):
        _wait_for(device)
        began = perf_counter()
        made.extract(coefficients, TIMED_K, feed)
        _wait_for(device)
        spans.append(perf_counter() - began)
    return median(spans)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
