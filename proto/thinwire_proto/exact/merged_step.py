"""The step of the rule `merged_muon`: all replicas take the same step of Muon on the merged gradient, to the bit.

    m ← μ·m + g                                                  of each parameter
    θ ← θ·c − η·0.2·√max(rows, columns)·orthogonal(g + μ·m)      of a matrix
    v ← β·v + (1 − β)·mean(g²),  θ ← θ·c − η·ρ·(1 − μ)·m̂/√v̂       of each row of an embedding, and of what is no matrix

The second line is Muon's (`thinwire_proto.muon`). The third is Adam with one second moment a row, as Adam-mini has it
for embeddings (arXiv 2406.16793). It learns about as much as with one for each number (docs/log/convergence.md), and
replicas have less to hold alike.

Moments are a part of the replica: they are in its snapshots and its fingerprint. Each operation is one of IEEE 754,
never fused, and subnormal results become 0; `orthogonal` has how a product of matrices is exact. Square roots are
computed in float64 and rounded to float32: there a root that is wrong in its last bit rounds to the same float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire_proto.batch_pool import process_batches
from thinwire_proto.contract import ADAM_BETAS, Parameter
from thinwire_proto.contract.rules.merged_muon import MOMENTUM, SECOND, MergedMuonSpec
from thinwire_proto.exact.apply import flush_subnormals, shrink
from thinwire_proto.exact.orthogonal import mean_squares, orthogonal_exact
from thinwire_proto.exact.schedule import to_float32
from thinwire_proto.muon import ADAMW_STEP

EPSILON = 2.0**-60
"""Added to √v̂. Gradients are at least 3.7e-9, the smallest size of votes, or 0."""
SMALL = 1 << 20
"""Numbers of a tensor that one thread takes by itself. Bounds the memory of a step; does not change the result."""


@torch.no_grad()
def take_merged_step(
    tensors: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    rule: MergedMuonSpec,
    *,
    learning_rate: float,
    decay: float,
    step: int,
) -> None:
    """Take the step from θ_step to θ_{step+1}, in place.

    tensors, moments, gradients: float32 by name, contiguous, on one device. learning_rate and decay: η and c, float32
    numbers that are equal on all replicas. Raises RuntimeError or TypeError on a device without float64.
    """

    def take(name: str, _slot: int = 0) -> None:
        theta, gradient, momentum = tensors[name], gradients[name], moments[MOMENTUM + name]
        momentum.mul_(to_float32(rule.momentum)).add_(gradient)
        flush_subnormals(momentum)
        shrink(theta, decay)
        if rule.takes(Parameter(name=name, shape=tuple(theta.shape))):
            ahead = torch.mul(momentum, to_float32(rule.momentum)).add_(gradient)
            size = learning_rate * (ADAMW_STEP * math.sqrt(max(theta.shape)))
            theta.sub_(orthogonal_exact(ahead).mul_(size).to(torch.float32))
        else:
            factor = learning_rate * rule.adamw_rate * _unbiased(rule.momentum, step + 1)
            _step_rows(theta, gradient, momentum, moments[SECOND + name], factor)
        flush_subnormals(theta)

    large, small = ([name for name in tensors if (tensors[name].numel() > SMALL) == is_large] for is_large in (1, 0))
    for name in large:  # all threads share one matrix, which several times in float64 takes enough memory
        take(name)
    process_batches(take, small, next(iter(tensors.values())).device)


def _step_rows(theta: Tensor, gradient: Tensor, momentum: Tensor, second: Tensor, factor: float) -> None:
    """Add a gradient to the second moment of each row, then θ ← θ − factor·m/√v."""
    rows, beta = len(second), ADAM_BETAS[1]
    at_once = max(1, SMALL * rows // theta.numel())
    for start in range(0, rows, at_once):
        part = slice(start, start + at_once)
        wide, mean = (of.view(rows, -1)[part].to(torch.float64) for of in (gradient, momentum))
        squares = mean_squares(wide).mul_(1 - beta).to(torch.float32)
        flush_subnormals(squares)
        of_rows = second[part].mul_(to_float32(beta)).add_(squares)
        flush_subnormals(of_rows)
        root = of_rows.to(torch.float64).sqrt_().to(torch.float32).to(torch.float64)
        each = root.add_(EPSILON).reciprocal_().mul_(factor)
        theta.view(rows, -1)[part].sub_(mean.mul_(each[:, None]).to(torch.float32))


def _unbiased(mu: float, steps: int) -> float:
    """m̂/√v̂ over m/√v after so many steps: (1 − μ)/(1 − μⁿ)·√(1 − βⁿ)."""
    return (1 - mu) / (1 - power(mu, steps)) * math.sqrt(1 - power(ADAM_BETAS[1], steps))


def power(base: float, exponent: int) -> float:
    """base ** exponent by products alone: the power functions of two systems can differ in the last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
