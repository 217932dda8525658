"""SparseLoCo (arXiv 2508.15706): local steps, then the largest entries of what was not sent yet, in 2 bits each.

    e ← β·e + Δ                        Δ: shared − own parameters, after H steps
    ĉ = Q(top-k of each chunk of e),   e ← e − ĉ
    θ ← θ − α · mean of all nodes' ĉ

Q is that of the published code: four bins of a tensor's chosen values, by their mean and standard deviation, and the
mean of each bin. A node sends its own entries once and receives everybody else's once, as in DeMo's published code. An
entry is charged 12 bits of place and 2 of value, and a tensor its four means. β, k and the chunk are those of public
implementations, since the paper's own could not be looked up; α is swept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.local_steps import LocalSteps, Tensors
from bench.convergence.method import NodeTraffic, SwarmSize, mean
from bench.convergence.problem import Problem
from thinwire_proto.contract import ScheduleSpec

CHUNK, TOP_K = 4096, 64
ERROR_DECAY = 0.95
BINS, RANGE_SIGMAS = 4, 6.0
PLACE_BITS, VALUE_BITS = 12, 2


class SparseLoCo:
    """All nodes of a swarm, one after the other."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._local, self._outer, self._nodes = LocalSteps(problem, arm, schedule, swarm), arm.outer, swarm.nodes
        self._unsent = [
            {name: torch.zeros_like(tensor) for name, tensor in self._local.shared.items()} for _ in range(swarm.nodes)
        ]

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        loss, descents = self._local.take(step, first)
        up = mean([self._send(unsent, descent) / 8 for unsent, descent in zip(self._unsent, descents, strict=True)])
        for name, tensor in self._local.shared.items():
            tensor.sub_(torch.stack([sent[name] for sent in descents]).mean(0), alpha=self._outer)
        return loss, NodeTraffic(up, up * (self._nodes - 1))

    def _send(self, unsent: Tensors, descent: Tensors) -> int:
        """Replace a node's descent with what it sends, and keep the rest. Returns bits."""
        bits = 0
        for name, error in unsent.items():
            error.mul_(ERROR_DECAY).add_(descent[name])
            descent[name], entries = compressed(error)
            error.sub_(descent[name])
            bits += entries * (PLACE_BITS + VALUE_BITS) + BINS * 32
        return bits


def compressed(values: Tensor) -> tuple[Tensor, int]:
    """The largest entries of each chunk of a tensor, quantized, and zeros; and the number of entries. A last chunk that
    is shorter sends as large a share of its entries, rounded up."""
    flat, sent = values.reshape(-1), torch.zeros(values.numel(), device=values.device)
    whole = len(flat) // CHUNK * CHUNK
    places = [
        chunks.abs().topk(-(-TOP_K * chunks.shape[1] // CHUNK), 1).indices + start
        for chunks, start in (
            (flat[:whole].view(-1, CHUNK), torch.arange(0, whole, CHUNK, device=flat.device)[:, None]),
            (flat[whole:][None], whole),
        )
        if chunks.numel()
    ]
    chosen = torch.cat([place.reshape(-1) for place in places])
    sent[chosen] = quantized(flat[chosen])
    return sent.view_as(values), len(chosen)


def quantized(values: Tensor) -> Tensor:
    """Each value as the mean of its bin. values: [n]."""
    mean = values.mean()
    sigma = (values - mean).norm() / max(1, len(values) - 1) ** 0.5
    width = torch.where(sigma > 0, sigma * RANGE_SIGMAS / BINS, torch.ones_like(sigma))
    bins = ((values - mean) / width + BINS // 2).round_().clamp_(0, BINS - 1).long()
    counts = torch.bincount(bins, minlength=BINS).clamp_(min=1)
    means = torch.zeros(BINS, device=values.device).index_add_(0, bins, values) / counts
    return means[bins]
