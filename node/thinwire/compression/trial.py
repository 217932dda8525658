"""Decides whether the compressor may run as one fused kernel on a card, and with which launch settings.

    python -m thinwire.compression.trial SPEC DEVICE   SPEC: a `DemoSpec` in JSON. Prints a `Verdict` in JSON.

A kernel compiled for an untested card cannot be trusted. So its result is first compared with plain torch, on tiles
that are hard to select from. Registers are the scarce resource, so several register limits are timed and the fastest is
used. `fused` runs this in a process of its own. What Triton compiles there is in its cache on disk, where the node
finds it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire.compression.compress import Extracted
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.magnitudes import TABLE, UNIT, coded
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.transform import float_basis

if TYPE_CHECKING:
    from thinwire.compression.triton.compress import FusedCompressor

TESTED_K = (1, 32, 4096)
TESTED_LAYOUT = TileLayout(
    [Parameter(name=str(n), shape=shape) for n, shape in enumerate([(100, 70), (64, 128), (3, 5, 40)])]
)
TIMED_TILES = 4096
"""With fewer, starting the kernel takes longer than the kernel: 134 MB for a moment, 201 MB with preconditioning."""
TIMED_RUNS = 7
TIMED_K = 32
GRADIENT_TOLERANCE = 4e-3
"""Relative to the largest coefficient. TF32 stays within it; a wrong index does not."""


@dataclass(frozen=True)
class Verdict:
    """launch: the index of the fastest launch in `triton.compress.launches` that passed, or None. why: in words."""

    launch: int | None
    why: str


def decide(spec: DemoSpec, device: torch.device) -> Verdict:
    """The fastest kernel launch among those that agree with torch."""
    try:
        from thinwire.compression.triton.compress import FusedCompressor, launches  # noqa: PLC0415
    except ImportError as error:
        return Verdict(None, f"operation by operation in torch, because Triton is not installed ({error})")
    found: list[tuple[float, int]] = []
    problem, choices = "", launches(device)
    tiles = TIMED_TILES if device.type == "cuda" else 1  # in the interpreter, a tile takes tens of milliseconds
    for number, launch in enumerate(choices):
        try:
            compressor = FusedCompressor(spec, device, launch)
            problem = disagreement(compressor, spec, device)
            if not problem:
                found.append((_seconds(compressor, spec, device, tiles), number))
        except Exception as error:  # noqa: BLE001 - a compiler may fail in any way; torch is the fallback
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if not found:
        why = f"operation by operation in torch, because the fused kernel fails its test here ({problem})"
        return Verdict(None, why)
    found.sort()
    timings = "; ".join(f"{choices[number]} {took / tiles / MATRIX_COMPONENTS:.2g}" for took, number in found)
    why = f"the fused kernel with the fastest of these launches, in seconds a parameter: {timings}"
    return Verdict(found[0][1], why)


def disagreement(compressor: FusedCompressor, spec: DemoSpec, device: torch.device) -> str:
    """Compare the kernel's result with plain torch. Returns the difference in words; "" if there is none."""
    for k in TESTED_K:
        wrong = _selection_differs(compressor, spec, device, hard_tiles(), k)
        if wrong:
            return f"k = {k}: {wrong}"
    return _accumulation_differs(compressor, spec, device)


def hard_tiles() -> Tensor:
    """Coefficients [n, 64, 64] that are hard to select from: ties, few, one, none, close together, far apart."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(64, 64, generator=generator, dtype=torch.float32)
    few = torch.zeros_like(normal)
    few.view(-1)[torch.randperm(MATRIX_COMPONENTS, generator=generator)[:20]] = normal.view(-1)[:20]
    one = torch.zeros_like(normal)
    one[63, 0] = -1e-3
    equals = torch.randint(-3, 4, (64, 64), generator=generator).to(torch.float32)
    close = normal.sign() * (1 + 1e-6 * normal.abs())
    apart = normal * torch.logspace(-15, 15, MATRIX_COMPONENTS, dtype=torch.float32).view(64, 64)
    return torch.stack([normal, few, one, torch.zeros_like(one), equals, close, apart, torch.full_like(one, -0.5)])


def reference_topk(coefficients: Tensor, k: int) -> Tensor:
    """Mask of the k largest of each tile, bool, in the shape [n, 64, 64], by sorting on the CPU.

    Ties go to the lowest positions; zeros are never selected."""
    flat = coefficients.flatten(1).abs()
    positions = flat.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return (torch.zeros_like(flat, dtype=torch.bool).scatter_(1, positions, True) & (flat > 0)).view(coefficients.shape)


def _on_cpu(extracted: Extracted) -> tuple[Tensor, Tensor, Tensor]:
    return extracted.components.cpu(), extracted.values.cpu(), extracted.codes.cpu()


def _selection_differs(
    compressor: FusedCompressor, spec: DemoSpec, device: torch.device, coefficients: Tensor, k: int
) -> str:
    after = coefficients.to(device, copy=True)
    components, values, codes = _on_cpu(compressor.extract(after, k))
    selected = reference_topk(coefficients, k)
    mean = (coefficients.double().abs() * selected).sum((1, 2)) / selected.sum((1, 2)).clamp(min=1)
    if spec.magnitude == "tile":
        ideal, mean = coded(mean.to(torch.float32))
        selected &= (mean > 0)[:, None, None]
        own = selected.any(2).any(1)
        if len(codes) != own.sum() or (codes.int() - ideal[own].int()).abs().amax().item() > 1:
            return "codes differ"
        mean[own] = torch.from_numpy(TABLE * UNIT)[codes.long()].to(mean.dtype)
    if not torch.equal(components, selected.view(-1).nonzero().view(-1)):
        return "other components are selected"
    votes = selected * coefficients.sign() * mean.view(-1, 1, 1)
    if not torch.allclose(values, votes.view(-1)[components].to(torch.float32), rtol=1e-5, atol=0):
        return "votes have other values"
    rest = (coefficients - votes).to(torch.float32)
    scale = coefficients.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    return "" if ((after.cpu() - rest).abs() / scale).amax() < 1e-5 else "the remaining momentum differs"


def _accumulation_differs(compressor: FusedCompressor, spec: DemoSpec, device: torch.device) -> str:
    from thinwire.compression.triton.compress import GradientInput  # noqa: PLC0415

    generator = torch.Generator().manual_seed(2)
    coefficients, expected = torch.randn(2, TESTED_LAYOUT.tiles, 64, 64, generator=generator)
    tensors = TESTED_LAYOUT.tensors
    gradients = [torch.randn(tensor.rows, tensor.columns, generator=generator) for tensor in tensors]
    seconds = [torch.rand(tensor.rows, tensor.columns, generator=generator) for tensor in tensors]
    rate, share, weight, beta = 0.5, 0.25, 0.75, spec.precondition_beta
    expected.zero_()
    after = [beta * v + (1 - beta) * (share * g) ** 2 for v, g in zip(seconds, gradients, strict=True)]
    for tensor, gradient, v in zip(tensors, gradients, after, strict=True):
        preconditioned = gradient * share
        if spec.precondition == "adam":
            preconditioned = preconditioned / ((v / weight).sqrt() + 1e-8)
        TESTED_LAYOUT.add_into(expected.view(-1), tensor, preconditioned.view(tensor.shape), rate)
    b = float_basis(torch.device("cpu"))
    expected = spec.beta * coefficients + b @ expected @ b.T
    second_moments = [v.to(device) for v in seconds] if spec.precondition == "adam" else []
    remaining = coefficients.to(device)
    inputs = GradientInput(
        TESTED_LAYOUT.tensors, [gradient.to(device) for gradient in gradients], rate, share, second_moments, weight
    )
    components, values, _ = _on_cpu(compressor.extract(remaining, 8, inputs))
    restored = remaining.cpu()
    restored.view(-1)[components] += values
    if not (restored - expected).abs().amax() < GRADIENT_TOLERANCE * expected.abs().amax():
        return "accumulated gradients differ"
    same = all(torch.allclose(v.cpu(), ideal, rtol=1e-5) for v, ideal in zip(second_moments, after, strict=False))
    return "" if same else "second moments differ"


def _seconds(compressor: FusedCompressor, spec: DemoSpec, device: torch.device, tiles: int) -> float:
    """Median time of one launch on `tiles` tiles, including gradient input and the list of selected components."""
    from thinwire.compression.triton.compress import GradientInput  # noqa: PLC0415

    layout = TileLayout([Parameter(name="w", shape=(64 * tiles, 64))])
    shape = layout.tensors[0].shape
    coefficients, gradient = torch.randn(tiles, 64, 64, device=device), torch.randn(shape, device=device)
    seconds = [torch.rand(shape, device=device)] if spec.precondition == "adam" else []
    inputs = GradientInput(layout.tensors, [gradient], 1.0, 1.0, seconds)
    spans = []
    for _ in range(TIMED_RUNS):
        _wait_for(device)
        began = perf_counter()
        compressor.extract(coefficients, TIMED_K, inputs)
        _wait_for(device)
        spans.append(perf_counter() - began)
    return median(spans)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    print(json.dumps(asdict(decide(DemoSpec.model_validate_json(sys.argv[1]), torch.device(sys.argv[2])))))


if __name__ == "__main__":
    main()
