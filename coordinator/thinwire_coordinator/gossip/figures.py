"""Figures of a gossip run, for status, page and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thinwire_proto.gossip.seen_lines import Line


@dataclass(frozen=True)
class SeenPeer:
    """An edge of a node, as it reports it. node: the peer's id. iteration: of the peer's newest message."""

    node: str
    line: Line
    iteration: int | None


@dataclass
class GossipFigures:
    """stage: waiting, training, deposit or complete. missing: nodes that the first topology waits for. topology:
    its number. members: of it; present: those that report. iterations: least, median and most of the present
    members. disagreement: root mean square distance of the members from their mean; error: relative, of the
    estimate; in_steps: the distance over the size of a step; measured_at: the iteration of that measurement, 0
    before the first. deposits: parameters in the final mean. None while unknown. codec: of messages. beats: rows that
    are sealed, over all terms. edges: by node, as it last reported them."""

    stage: Literal["waiting", "training", "deposit", "complete"] = "waiting"
    missing: int = 0
    topology: int = 0
    members: int = 0
    present: int = 0
    iterations: tuple[int, int, int] = (0, 0, 0)
    disagreement: float | None = None
    error: float = 0.0
    in_steps: float | None = None
    measured_at: int = 0
    deposits: int = 0
    loss: float | None = None
    codec: str = ""
    beats: int = 0
    edges: dict[str, tuple[SeenPeer, ...]] = field(default_factory=dict)
