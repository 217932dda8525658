"""The lines of a node as it reports them, for those who watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EDGES_MAX = 64
"""Edges in a report. A node of a larger complete topology names those with the smallest member numbers."""
Line = Literal["direct", "relay", "away"]


@dataclass(frozen=True)
class SeenEdge:
    """member: number of the peer. iteration: of its newest message; None before the first."""

    member: int
    line: Line
    iteration: int | None = None


@dataclass(frozen=True)
class SeenLines:
    """direct_sent, direct_received: payload bytes of direct lines since the node's process started."""

    direct_sent: int = 0
    direct_received: int = 0
    edges: tuple[SeenEdge, ...] = ()
