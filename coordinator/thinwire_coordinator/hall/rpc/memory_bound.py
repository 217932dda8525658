"""The most memory that a coordinator takes, whatever arrives: the sum of its bounds, known before it listens.

What strangers and nodes can make the coordinator hold is bounded in `access.bounds`, `OwnMemory` of its kind of
exchange, and here. The rest is the model. Figures that no contract gives were measured (docs/operating.md).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from thinwire_common.memory_limit import memory_limit_bytes
from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.access.bounds import Bounds
from thinwire_coordinator.hall.rpc.file_parts import FILE_PART_BYTES
from thinwire_coordinator.hall.rpc.request_bounds import HEADER_BYTES_MAX, REQUEST_BYTES_MAX
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout

PROGRAM_BYTES = 350_000_000
"""Interpreter, torch for the CPU, gRPC: what a program holds with a tiny model (VmHWM in a small swarm)."""
MODEL_BYTES_A_PARAMETER = 6
"""Above the measured peak (docs/performance.md), without the sums: the replica, and a tensor that is measured."""
FROZEN_BYTES_A_PARAMETER = 4
CONNECTION_BYTES = 128 << 10
"""gRPC's state of a connection with TLS, and a window of 64 KiB that nobody has read."""
CALL_BYTES = 32 << 10
"""An open call, in gRPC and as a task."""
FILE_PARTS_MAX = 256
"""Parts of files that are on their way to nodes at the same time."""
COPIES = 3
"""Of a message while it is sent or received: ours, the serialized one, and gRPC's."""
TABLES_BYTES = 96 << 20
"""Token buckets, answered challenges, counts of nodes, members, histories: each table has a greatest length."""
ALLOCATOR = 1.25
"""Memory that the allocator keeps beside what is used, as a factor."""


@dataclass(frozen=True)
class OwnMemory:
    """What a kind of exchange takes beside what any run does, in bytes. part: the largest message that a node sends.
    model: beside the replica. named: the rest, by what it is for."""

    part: int
    model: int
    named: dict[str, int]


@dataclass(frozen=True)
class MemoryBound:
    """In bytes, by what it is for; `program` is what the process has before anything arrives."""

    named: dict[str, int]

    @property
    def total_bytes(self) -> int:
        held = sum(self.named.values()) - self.named["program"]
        return self.named["program"] + round(ALLOCATOR * held)

    def in_words(self) -> str:
        parts = ", ".join(f"{name} {human_bytes(bytes_)}" for name, bytes_ in self.named.items() if bytes_)
        return f"at most {human_bytes(self.total_bytes)} whatever arrives: {parts}"


def machine_bytes() -> int:
    """Memory of this machine, or of its container or service if that has less."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize
    limit = memory_limit_bytes()
    return most if limit is None else min(most, limit)


def memory_bound(contract: Contract, bounds: Bounds, own: OwnMemory, frozen: int = 0) -> MemoryBound:
    """The bound of a run. own: of its kind of exchange. frozen: parameters that are not trained."""
    layout, nodes = TileLayout(contract.parameters), contract.round.nodes_max
    model = MODEL_BYTES_A_PARAMETER * layout.parameters + FROZEN_BYTES_A_PARAMETER * frozen + own.model
    message = own.part + HEADER_BYTES_MAX
    common = {
        "program": PROGRAM_BYTES,
        "model": model,
        "requests": (COPIES - 1) * (nodes * message + bounds.strangers_calls_max * REQUEST_BYTES_MAX),
        "files": COPIES * FILE_PARTS_MAX * FILE_PART_BYTES,
        "connections": bounds.connections_max * CONNECTION_BYTES + bounds.calls_max * CALL_BYTES,
        "tables": TABLES_BYTES,
    }
    return MemoryBound(common | own.named)
