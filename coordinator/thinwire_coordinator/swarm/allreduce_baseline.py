"""The baseline for comparison: the traffic of a ring all-reduce of whole gradients."""

from __future__ import annotations

FP32_BYTES = 4


def ring_bytes(nodes: int, parameters: int) -> int:
    """Bytes that all nodes together send in one fp32 ring all-reduce: N · 2·(N−1)/N · 4·P. They receive as many."""
    return 2 * max(nodes - 1, 0) * FP32_BYTES * parameters
