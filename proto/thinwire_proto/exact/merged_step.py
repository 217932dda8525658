"""The step of the rule `merged_muon`: all replicas take the same step of Muon on the merged gradient, to the bit.

    m ← μ·m + g                                                of each parameter
    θ ← θ·c − η·0.2·√max(rows, columns)·orthogonal(g + μ·m)    of a matrix
    v ← β·v + (1 − β)·mean(g²),  θ ← θ·c − η·ρ·m̂/√v̂             of each row of an embedding, and of what is no matrix

The second line is Muon's (`thinwire_proto.muon`). The third is Adam with one second moment a row, as Adam-mini has it
for embeddings (arXiv 2406.16793). It learns about as much as with one for each number (docs/log/convergence.md), and
replicas have less to hold alike. A row of g that is more than five times √v̂ is shortened to that, before both:
otherwise one round in which a node shouts would stop a row for the hundreds of rounds that v remembers.

Moments are a part of the replica: they are in its snapshots and its fingerprint. Each operation is one of IEEE 754,
never fused, and subnormal results become 0; `orthogonal` has how a product of matrices is exact. Square roots are
computed in float64 and rounded to float32: there a root that is wrong in its last bit rounds to the same float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from thinwire_proto.batch_pool import process_batches
from thinwire_proto.contract import ADAM_BETAS, Parameter
from thinwire_proto.contract.rules.merged_muon import MOMENTUM, SECOND, SMALL_NUMBERS, MergedMuonSpec
from thinwire_proto.exact.apply import flush_subnormals, shrink
from thinwire_proto.exact.orthogonal import mean_squares, orthogonal_exact
from thinwire_proto.exact.schedule import to_float32
from thinwire_proto.muon import ADAMW_STEP
from thinwire_proto.out_of_memory import retry_out_of_memory

EPSILON = 2.0**-60
"""Added to √v̂, for rows of which it is 0."""
SMALL = SMALL_NUMBERS
"""Larger tensors are not taken by one thread each. Bounds the memory of a step; does not change the result."""
CLIP_SQUARES = 25.0
"""A row of a gradient counts at most this many times the mean of its squares so far."""


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
    numbers that are equal on all replicas. Raises RuntimeError or TypeError on a device without float64, and
    TooLittleMemory. Work that runs out of memory is repeated: changes follow the last allocation, or are noted.
    """

    begun: set[tuple[str, int]] = set()  # tensors, or rows of them, whose moments are of this step already

    def take(name: str, _slot: int = 0) -> None:
        theta, gradient, momentum = tensors[name], gradients[name], moments[MOMENTUM + name]
        if rule.takes(Parameter(name=name, shape=tuple(theta.shape))):
            if (name, 0) not in begun:
                _add(momentum, gradient, rule.momentum)
                begun.add((name, 0))
            ahead = torch.mul(momentum, to_float32(rule.momentum)).add_(gradient)
            size = learning_rate * (ADAMW_STEP * math.sqrt(max(theta.shape)))
            _move(theta, orthogonal_exact(ahead).mul_(size), decay)
            return
        factor = learning_rate * rule.adamw_rate * _unbiased(rule.momentum, step + 1)
        rows = moments[SECOND + name]
        at_once = max(1, SMALL * len(rows) // theta.numel())
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            of_theta, of_gradient, mean = (one.view(len(rows), -1)[part] for one in (theta, gradient, momentum))
            if (name, start) not in begun:
                _update_moments(of_gradient, mean, rows[part], rule.momentum, step)
                begun.add((name, start))
            if (name, ~start) not in begun:
                _step_rows(of_theta, mean, rows[part], factor, decay)
                begun.add((name, ~start))

    large, small = ([name for name in tensors if (tensors[name].numel() > SMALL) == is_large] for is_large in (1, 0))
    for name in large:  # all threads share one matrix, which several times in float64 takes enough memory
        retry_out_of_memory(partial(take, name))
    process_batches(take, small, next(iter(tensors.values())).device)


def _update_moments(gradient: Tensor, momentum: Tensor, second: Tensor, mu: float, step: int) -> None:
    """The third line of the module, as far as the moments of some rows. gradient, momentum: [rows, columns]. second:
    [rows]."""
    beta = ADAM_BETAS[1]
    squares = mean_squares(gradient.to(torch.float64))
    if step:
        most = second.to(torch.float64).mul_(CLIP_SQUARES / (1 - power(beta, step)))
        is_more = (squares > most) & (most > 0)
        share = torch.where(is_more, most / squares, 1.0).to(torch.float32)
        gradient = gradient * _root(share)[:, None].to(torch.float32)
        squares = torch.where(is_more, most, squares)
    added = squares.mul_(1 - beta).to(torch.float32)
    _add(momentum, gradient, mu)
    _add(second, added, beta)


def _step_rows(theta: Tensor, momentum: Tensor, second: Tensor, factor: float, decay: float) -> None:
    """The rest of the line. theta, momentum: [rows, columns]. second: [rows]."""
    each = _root(second).add_(EPSILON).reciprocal_().mul_(factor)
    _move(theta, momentum.to(torch.float64).mul_(each[:, None]), decay)


def _root(values: Tensor) -> Tensor:
    """The roots of float32 numbers, rounded to float32, in float64."""
    return values.to(torch.float64).sqrt_().to(torch.float32).to(torch.float64)


def _add(total: Tensor, values: Tensor, decay: float) -> None:
    """total ← decay·total + values, float32. Subnormal values become 0, in `values` too."""
    flush_subnormals(values)
    total.mul_(to_float32(decay)).add_(values)
    flush_subnormals(total)


def _move(theta: Tensor, change: Tensor, decay: float) -> None:
    """θ ← θ·c − change. change: float64."""
    rounded = change.to(torch.float32)
    shrink(theta, decay)
    theta.sub_(rounded)
    flush_subnormals(theta)


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
