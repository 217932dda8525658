"""The yardstick for bytes: a ring all-reduce of float32 among the same nodes.

Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
"""

from __future__ import annotations

FLOAT32_BYTES = 4


def ring_bytes(nodes: int) -> float:
    """Bytes a parameter that each of `nodes` nodes sends and receives in one all-reduce, half of them each way:
    16·(n − 1)/n."""
    return 4 * FLOAT32_BYTES * max(0, nodes - 1) / max(1, nodes)


def ring_bytes_of_all(nodes: int, parameters: int) -> int:
    """Bytes that all nodes together send in one all-reduce: 8·(n − 1) a parameter. They receive as many."""
    return 2 * FLOAT32_BYTES * max(0, nodes - 1) * parameters
