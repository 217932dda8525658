"""Foretells the peak memory and the disk space of a node and of the coordinator, in bytes."""

from __future__ import annotations

from thinwire_coordinator.planning.facts import DataFacts, ModelFacts
from thinwire_proto.contract import RunSpec
from thinwire_proto.needs import (
    FROZEN_BYTES_A_PARAMETER,
    PROGRAM_BYTES,
    samples_at_once,
    state_disk_bytes,
    trained_bytes,
)

DEFAULT_MICRO_BATCH = 8
"""The micro-batch of `thinwire-node start` without `--micro-batch`."""
COORDINATOR_BYTES_A_PARAMETER = 16
"""Measured peak (docs/performance.md), without the sums: replica, copy, the model that measures."""
SUM_BYTES_A_COMPONENT = 2
"""The merged votes, padding included."""


def node_bytes(run: RunSpec, facts: ModelFacts, micro_batch: int) -> float:
    """Peak memory of a node on a CPU. On a card with bfloat16, activations take about 0.6 of what is counted here."""
    frozen = FROZEN_BYTES_A_PARAMETER * facts.frozen
    activations = samples_at_once(run, micro_batch) * facts.activation_bytes
    return PROGRAM_BYTES + trained_bytes(run, facts.size) + frozen + activations


def micro_batch_for(run: RunSpec, facts: ModelFacts, memory_bytes: float, most: int = DEFAULT_MICRO_BATCH) -> int:
    """The largest micro-batch, a power of two up to `most`, that fits into the memory; 1 if none does."""
    while most > 1 and node_bytes(run, facts, most) > memory_bytes:
        most //= 2
    return most


def coordinator_bytes(run: RunSpec, facts: ModelFacts) -> float:
    """Peak memory of the coordinator."""
    model = COORDINATOR_BYTES_A_PARAMETER * facts.trained + SUM_BYTES_A_COMPONENT * facts.components
    return PROGRAM_BYTES + model + FROZEN_BYTES_A_PARAMETER * facts.frozen


def node_disk_bytes(run: RunSpec, facts: ModelFacts, data: DataFacts) -> float:
    """Disk space of a node that comes to read all of the data. A bounded cache may keep less."""
    frozen, of_data = FROZEN_BYTES_A_PARAMETER * facts.frozen, max(data.bytes, data.node_bytes_min)
    return state_disk_bytes(run, facts.size) + frozen + of_data
