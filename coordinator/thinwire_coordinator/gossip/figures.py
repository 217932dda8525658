"""The figures of a gossip run: its state now, and what was measured and sealed last."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from thinwire_coordinator.gossip.directory import Directory, Phase
from thinwire_coordinator.gossip.participants import Participant
from thinwire_proto.gossip.reports import Line

GossipStage = Literal["waiting", "training", "deposit", "complete"]
STAGES: dict[Phase, GossipStage] = {
    Phase.TRAINING: "training",
    Phase.COLLECTING: "deposit",
    Phase.COMPLETE: "complete",
}


@dataclass(frozen=True)
class SeenPeer:
    """An edge of a node, as it reports it. node: the peer's id. iteration: of the peer's newest message."""

    node: str
    line: Line
    iteration: int | None


class GossipFigures:
    """What the directory says now, and what was measured and sealed last. codec: of messages. beats: rows that are
    sealed, over all terms.

    disagreement: root mean square distance of the members from their mean; error: relative, of the estimate; in_steps:
    the distance over the size of a step; measured_at: the iteration of that measurement, 0 before the first. None while
    unknown. edges: by node, as it last reported them. deposited: nodes whose parameters have come.
    """

    def __init__(self, directory: Directory, codec: str, beats: int) -> None:
        self._directory = directory
        self.codec = codec
        self.beats = beats
        self.disagreement: float | None = None
        self.error = 0.0
        self.in_steps: float | None = None
        self.measured_at = 0
        self.loss: float | None = None
        self.edges: dict[str, tuple[SeenPeer, ...]] = {}
        self.deposited: set[str] = set()

    @property
    def stage(self) -> GossipStage:
        directory = self._directory
        has_begun = directory.topology is not None or directory.phase is not Phase.TRAINING
        return STAGES[directory.phase] if has_begun else "waiting"

    @property
    def missing(self) -> int:
        """Nodes that the first topology waits for."""
        return self._directory.missing if self.stage == "waiting" else 0

    @property
    def topology(self) -> int:
        return self._directory.number

    @property
    def members(self) -> int:
        """Nodes in the newest topology."""
        topology = self._directory.topology
        return len(topology.plan.members) if topology is not None else 0

    @property
    def present(self) -> int:
        """Members that report."""
        return len(self._directory.running)

    @property
    def iterations(self) -> tuple[int, int, int]:
        """Least, median and most of the members that report; of all members if none does."""
        done = [one.iteration for one in self._directory.running or self._all_members()] or [0]
        return min(done), int(statistics.median_low(done)), max(done)

    def _all_members(self) -> list[Participant]:
        return [one for one in self._directory.by_node.values() if self._directory.runs(one)]
