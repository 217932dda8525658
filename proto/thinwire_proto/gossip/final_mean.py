"""The exact mean of all nodes' parameters: θ = round(Σ round(xᵢ·2²⁴) / (n·2²⁴)), the same in any order.

A sum of floats depends on its order. A sum of integers does not. Under the bounds below each sum is at most 2⁵², so
float64 holds it exactly. One division and one rounding to float32 follow, whose bits IEEE 754 defines.

One node must not decide the mean (`bounded_mean`). From three nodes on, parameters are compared with the median of each
number over the nodes. Honest nodes are about equally far from it, however far apart all are. A node that is further
than `factor_of` times the median distance is left out. Of the others, a block that is further than so many times the
median distance of that block is brought nearer, so that nobody puts all that is allowed into a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire_proto.errors import LocalError, PayloadError
from thinwire_proto.exact.apply import flush_subnormals
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.blocks import Blocks

FRACTION_BITS = 24
PARAMETER_MAX = 2.0**14
NODES_MAX = 1 << 14
CHUNK = 1 << 20
"""Parameters that are converted at a time. Bounds the extra memory; does not change the mean."""
FACTOR = 8.0
"""Times the median distance. With sixteen nodes the furthest was at 1.3."""
FACTOR_OF_THREE = 32.0
"""The same with three nodes. Two of them may have just mixed while the third was away: one that had been killed was at
up to 8.3 (docs/log/decentralized.md)."""
COMPARED_LEAST = 3
"""With fewer nodes nobody can say which one is wrong."""
ROUNDING = 2.0**-20
"""Of the parameters: a difference as small as this puts nobody out."""
READ_NUMBERS = 1 << 20
"""Of all nodes together, that are in memory at a time. Bounds the memory; does not change the mean."""

Read = Callable[[slice], Tensor]
"""Reads a part of a node's parameters, float32."""

assert NODES_MAX * int(PARAMETER_MAX) << FRACTION_BITS < 1 << 53


def factor_of(nodes: int) -> float:
    """So many times the median distance from the median is allowed."""
    return FACTOR_OF_THREE if nodes == COMPARED_LEAST else FACTOR


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


@dataclass(frozen=True)
class BoundedMean:
    """mean: float32 [parameters]. far: by place, nodes that are left out, and how many times as far away as usual they
    are. clipped: by place, how many blocks of a node in the mean were brought nearer."""

    mean: Tensor
    far: dict[int, float]
    clipped: dict[int, int]


def bounded_mean(nodes: Sequence[Read], layout: TileLayout) -> BoundedMean:
    """The exact mean of the nodes' parameters, of which one cannot move it far; see the module. The same in any order.

    Raises LocalError for parameters that `in_integers` refuses, PayloadError if there are no nodes or too many."""
    if not 0 < len(nodes) <= NODES_MAX:
        raise PayloadError(f"a mean has 1 to {NODES_MAX} nodes; there are {len(nodes)}")
    blocks, kept, far = Blocks(layout), [*range(len(nodes))], dict[int, float]()
    near, limits = _distances(nodes, blocks)
    if len(nodes) >= COMPARED_LEAST:
        whole = near.double().norm(dim=1)
        usual = max(float(whole.median()), ROUNDING * _norm_of_median(nodes, blocks))
        far = {
            node: float(whole[node]) / usual for node in kept if not float(whole[node]) <= factor_of(len(nodes)) * usual
        }
    if far:
        kept = [node for node in kept if node not in far]
        near, limits = _distances([nodes[node] for node in kept], blocks)
    over = near > limits if len(kept) >= COMPARED_LEAST else torch.zeros_like(near, dtype=torch.bool)
    total = torch.zeros(layout.parameters, dtype=torch.int64)
    for numbers, of_blocks, _, parts in _parts([nodes[node] for node in kept], blocks):
        median = parts.median(0).values
        for place, part in enumerate(parts):
            if bool((far_here := over[place, of_blocks]).any()):
                scales = (limits / near[place])[of_blocks, None]
                part[far_here] = (median + (part - median) * scales)[far_here]
            total[numbers] += in_integers(part.reshape(-1))
    clipped = {node: count for node, count in zip(kept, over.sum(1).tolist(), strict=True) if count}
    return BoundedMean(mean_of_sum(total, len(kept)), far, clipped)


def _parts(nodes: Sequence[Read], blocks: Blocks) -> Iterator[tuple[slice, slice, int, Tensor]]:
    """Numbers, blocks, size of a block, and the parameters [nodes, blocks, size], part after part."""
    for numbers, of_blocks, size in blocks.spans(READ_NUMBERS // len(nodes)):
        yield numbers, of_blocks, size, torch.stack([read(numbers).view(-1, size) for read in nodes])


def _distances(nodes: Sequence[Read], blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The distance of each block of each node from the median, float32 [nodes, blocks], and how far it may be."""
    near = torch.empty(len(nodes), blocks.count)
    for _, of_blocks, _, parts in _parts(nodes, blocks):
        near[:, of_blocks] = (parts - parts.median(0).values).norm(dim=2)
    whole = near.double().norm(dim=1).median()
    even = (blocks.lengths / max(1, int(blocks.lengths.sum()))).sqrt() * whole  # were all numbers alike
    return near, factor_of(len(nodes)) * torch.maximum(near.median(0).values, even.to(torch.float32))


def _norm_of_median(nodes: Sequence[Read], blocks: Blocks) -> float:
    return math.sqrt(
        math.fsum(float(parts.median(0).values.double().norm()) ** 2 for *_, parts in _parts(nodes, blocks))
    )
