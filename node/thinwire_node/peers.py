"""The peers of a node, as observers see them. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Edge:
    """An edge of a node. member: number of the peer. line: direct, relay or away. iteration: of the peer's newest
    message; None before the first. node_id: of the peer; empty if it is not known."""

    member: int
    line: Literal["direct", "relay", "away"]
    iteration: int | None = None
    node_id: str = ""


@dataclass(frozen=True)
class Peers:
    """The peers of a node, in a gossip run; also without a session, as iterations go on. topology: the newest that it
    knows; 0: none yet. sent_bytes, received_bytes: of messages to and from peers; the same by kind of line, direct or
    relay. waited_s: time that iterations waited for messages. direct: peers that are there by a direct line."""

    topology: int
    present: int
    absent: int
    sent_bytes: int
    received_bytes: int
    waited_s: float
    direct: int = 0
    sent_bytes_by_line: dict[str, int] = field(default_factory=dict)
    received_bytes_by_line: dict[str, int] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
