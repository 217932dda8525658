"""The yardstick: what exchanging whole gradients would have moved."""

from __future__ import annotations

FP32_BYTES = 4


def ring_bytes(nodes: int, parameters: int) -> int:
    """What all nodes of a ring all-reduce in fp32 send in a round, and receive again: N · 2·(N−1)/N · 4·P."""
    return 2 * max(nodes - 1, 0) * FP32_BYTES * parameters
