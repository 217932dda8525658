"""Estimates of the training speed of machines, by name.

A node's real speed is seen in its first minute; the node prints it. Until then, these figures are good to a factor of
about three.
"""

from __future__ import annotations

from typing import NamedTuple

SHARE_OF_PEAK = 0.3
"""Part of a card's peak in bfloat16 that training reaches here: eager torch, float32 parameters. Compiled programs on
large models reach 0.4 to 0.5 (arXiv 2204.02311, section 4.1)."""


class Machine(NamedTuple):
    """flops_s: floating-point operations per second in training. memory_bytes: what a node can use of it."""

    flops_s: float
    memory_bytes: float
    source: str


MACHINES: dict[str, Machine] = {
    "cpu-core": Machine(26e9, 8e9, "measured: 52 GFLOP/s on two cores of a 3 GHz Xeon in `make swarm`"),
    "laptop": Machine(150e9, 12e9, "estimate: eight cores at 19 GFLOP/s, which share power and memory"),
    "apple-m": Machine(1e12, 12e9, "estimate: 0.3 of the 3.6 TFLOP/s of an M2 in float32"),
    "laptop-gpu": Machine(SHARE_OF_PEAK * 25e12, 8e9, "estimate: 0.3 of a mobile card of 25 TFLOP/s in bfloat16"),
    "rtx-3090": Machine(SHARE_OF_PEAK * 71e12, 24e9, "estimate: 0.3 of 71 TFLOP/s, the peak in bfloat16"),
    "rtx-4090": Machine(SHARE_OF_PEAK * 165e12, 24e9, "estimate: 0.3 of 165 TFLOP/s, the peak in bfloat16"),
    "a100": Machine(SHARE_OF_PEAK * 312e12, 80e9, "estimate: 0.3 of 312 TFLOP/s, the peak in bfloat16"),
    "h100": Machine(SHARE_OF_PEAK * 989e12, 80e9, "estimate: 0.3 of 989 TFLOP/s, the peak in bfloat16"),
}
DEFAULT_MACHINE = "laptop"
