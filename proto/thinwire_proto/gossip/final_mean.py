"""The exact mean of all nodes' parameters: θ = round(Σ round(xᵢ·2²⁴) / (n·2²⁴)), the same in any order.

A sum of floats depends on its order. A sum of integers does not. Under the bounds below each sum is at most 2⁵², so
float64 holds it exactly. One division and one rounding to float32 follow, whose bits IEEE 754 defines.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from thinwire_proto.errors import LocalError, PayloadError
from thinwire_proto.exact.apply import flush_subnormals

FRACTION_BITS = 24
PARAMETER_MAX = 2.0**14
NODES_MAX = 1 << 14
CHUNK = 1 << 20
"""Parameters that are converted at a time. Bounds the extra memory; does not change the mean."""

assert NODES_MAX * int(PARAMETER_MAX) << FRACTION_BITS < 1 << 53


def in_integers(x: Tensor) -> Tensor:
    """round(x·2²⁴), int64, in the shape of x; ties go to the even number. Raises LocalError if a parameter is not
    finite, or beyond PARAMETER_MAX."""
    if x.numel():
        low, high = (float(bound) for bound in x.aminmax())
        if not (low >= -PARAMETER_MAX and high <= PARAMETER_MAX):
            raise LocalError(f"the parameters must lie within ±{PARAMETER_MAX:g}; they are {low:g} to {high:g}")
    return (x.to(torch.float64) * 2.0**FRACTION_BITS).round_().to(torch.int64)


def final_mean(nodes: Iterable[Tensor]) -> Tensor:
    """The mean of the nodes' parameters as `in_integers` gives them, float32. Raises PayloadError if a node's numbers
    are out of bounds, or if there are no nodes or too many."""
    total, count, bound = None, 0, int(PARAMETER_MAX) << FRACTION_BITS
    for integers in nodes:
        if integers.dtype != torch.int64 or (total is not None and integers.shape != total.shape):
            raise PayloadError("the parameters of all nodes must be int64 of one shape")
        if integers.numel() and not (-bound <= int(integers.min()) and int(integers.max()) <= bound):
            raise PayloadError(f"a parameter of node {count} is beyond ±{PARAMETER_MAX:g}")
        total = integers.clone() if total is None else total.add_(integers)
        count += 1
        if count > NODES_MAX:
            raise PayloadError(f"a mean has at most {NODES_MAX} nodes")
    if total is None:
        raise PayloadError("a mean needs at least one node")
    return mean_of_sum(total.flatten(), count).view(total.shape)


def mean_of_sum(total: Tensor, count: int) -> Tensor:
    """The mean of `count` nodes, at most NODES_MAX, from the sum of what `in_integers` gave, flat; float32."""
    mean = torch.empty(total.shape, dtype=torch.float32)
    divisor = count * 2.0**FRACTION_BITS
    for start in range(0, len(total), CHUNK):
        mean[start : start + CHUNK] = total[start : start + CHUNK].to(torch.float64) / divisor
    flush_subnormals(mean)
    return mean
