"""DistributedDataParallel with a ring all-reduce of float32 gradients, and steps of Muon.

    T = E[max C] + max(0, X − hidden),  X = 2(n−1)·t(4P/n)
    where rounds grow: T = (E[max Σ_g C] + max(0, X − hidden)) / g

The n − 1 steps of reducing and the n − 1 of gathering each send an n-th of the gradients to the next node of the ring
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009), and a step takes as long as its slowest edge.
Only the first message finds connections that were idle.

DDP sends a bucket of 25 MiB as soon as the backward pass of the last micro-batch has filled it. The last bucket cannot
be hidden, so a model of one bucket hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from thinwire_planner.methods.growth import growth_in_words, over_stages
from thinwire_planner.methods.method import FLOAT32_BYTES, METHODS, Forecast, Setting, Variant
from thinwire_proto.all_reduce import ring_bytes

FAMILY = "all-reduce"
BUCKET_BYTES = 25 * 1024 * 1024
BACKWARD_PART = 2 / 3
"""Part of a forward and backward pass that is the backward pass, which has twice the products."""
GROWING_TOKENS = {8: 1.075, 16: 1.13}
"""As in `Forecast`, by how many times as large rounds become (docs/convergence: muon-half-growing)."""


def exchange_s(setting: Setting, steps: int = 1) -> float:
    """X: an all-reduce of all gradients, or parameters, in float32, after so many steps."""
    nodes = setting.nodes
    if nodes == 1:
        return 0.0
    senders = np.arange(nodes)
    receivers = (senders + 1) % nodes
    part_bytes = FLOAT32_BYTES * setting.parameters / nodes
    first = setting.network.edges_s(senders, receivers, part_bytes, steps * setting.slowest_s).max()
    other = setting.network.edges_s(senders, receivers, part_bytes, 0.0).max()
    return float(first + (2 * (nodes - 1) - 1) * other)


def hidden_s(setting: Setting) -> float:
    """The part of the backward pass that an exchange can hide behind."""
    buckets = max(1, round(FLOAT32_BYTES * setting.parameters / BUCKET_BYTES))
    return BACKWARD_PART * setting.mean_s / setting.passes * (1 - 1 / buckets)


def _forecast(setting: Setting, times: int = 1) -> Forecast:
    """times: steps that are as large as a round."""
    computing, exchange = setting.waiting_s(times), exchange_s(setting, times) / times
    hidden = min(hidden_s(setting) / times, exchange)
    return Forecast(
        computing + exchange - hidden,
        ring_bytes(setting.nodes) / times,
        (("computing", computing), ("exchange", exchange), ("hidden", -hidden)),
    )


def _growing(setting: Setting, *, times: int) -> Forecast:
    return over_stages(times, GROWING_TOKENS[times], lambda larger: _forecast(setting, larger))


@METHODS.register("all-reduce")
def all_reduce(setting: Setting) -> Iterator[Variant]:
    yield Variant("all-reduce, DDP", FAMILY, _forecast, is_overlapped=False)
    for times in GROWING_TOKENS:
        name = f"all-reduce{growth_in_words(times)}"
        yield Variant(name, FAMILY, partial(_growing, times=times), is_overlapped=False, looseness=0.5)
