"""Figures of a whole run, over all terms of the coordinator, for the status call."""

from __future__ import annotations

from dataclasses import dataclass

SHARES_TOLD_MAX = 100
"""Nodes whose shares a status has, so that its size does not grow with the nodes that have ever come."""


@dataclass(frozen=True)
class NodeShare:
    """A node's counted contributions and their tokens. name: empty if it is not known."""

    node: str
    name: str
    counted: int
    tokens: int


@dataclass(frozen=True)
class WholeRun:
    """tokens: of counted contributions. since_step: where this term began. nodes: with a counted contribution. shares:
    those with the most tokens, at most SHARES_TOLD_MAX."""

    tokens: int
    since_step: int
    nodes: int
    shares: tuple[NodeShare, ...]
