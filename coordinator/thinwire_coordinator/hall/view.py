"""A read-only view of a run, for the status call, the web page and the metrics. Each kind of exchange has its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.metrics_core import Metric

from thinwire_coordinator.hall.access.settings import Pause
from thinwire_coordinator.hall.counts import Counts, NodeCounts
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.members import Member
from thinwire_proto.contract import Contract
from thinwire_proto.task import HeldOutSet

Stage = Literal["waiting", "paused", "training", "complete"]
Plain = dict[str, Any]


class RunView(ABC):
    """A run, read-only. Each property gives the current value."""

    public: frozenset[str] = frozenset({"id", "name", "rounds", "tokens"})
    """Fields of a node that the page shows to everybody: those that the ledger has, which everybody gets."""
    own_orders: frozenset[str] = frozenset()
    """Orders of the page's table of nodes that this kind of exchange has beside those of all kinds."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self.layout = hall.layout
        self.term = hall.term
        self.counts: Counts = hall.counts

    @property
    def held_out_sets(self) -> Sequence[HeldOutSet]:
        return self._hall.state.held_out_sets

    @property
    def loss_unit(self) -> str:
        """See `thinwire_proto.task.DataSource.loss_unit`."""
        return self._hall.state.data.loss_unit

    @property
    def contract(self) -> Contract:
        return self._hall.contract

    @property
    @abstractmethod
    def stage(self) -> Stage: ...

    @property
    @abstractmethod
    def condition(self) -> str:
        """The stage, in words."""

    @property
    def pause(self) -> Pause | None:
        """The pause that holds now."""
        return self._hall.pause

    @property
    @abstractmethod
    def step(self) -> int:
        """How far the run is, in the unit of `schedule.steps`."""

    @property
    def newest_step(self) -> int:
        """The step at which the curves stand."""
        return self.step

    @property
    @abstractmethod
    def round_number(self) -> int:
        """The number of the newest round, or of the newest beat."""

    @property
    @abstractmethod
    def loss(self) -> float | None:
        """The newest training loss."""

    @abstractmethod
    def clock(self) -> Plain:
        """The phase of the run for the page, and a text that says what it waits for."""

    def own_summary(self) -> Plain | None:
        """The figures that only this kind of exchange has, for the page; None for none."""
        return None

    def own_fields(self, node: str, counts: NodeCounts) -> Plain:
        """More fields of a node's row on the page."""
        return {}

    def own_metrics(self) -> Iterable[Metric]:
        """The gauges that only this kind of exchange has."""
        return ()

    @property
    def failed(self) -> bool:
        """Whether the coordinator cannot go on."""
        return self._hall.tasks.failed.done()

    @property
    def now(self) -> float:
        """The coordinator's clock, in seconds."""
        return self._hall.now()

    @property
    def steps(self) -> int:
        """The length of the whole run, in the unit of `step`."""
        return self.contract.schedule.steps

    @property
    def sealed_at(self) -> float:
        """When the newest row was sealed, on the coordinator's clock; before the first, when this process began."""
        return self._hall.sealed_at

    @property
    def measured_step(self) -> int:
        """The newest step whose held-out losses were measured, finite or not."""
        return self._hall.measured_step

    @property
    def members(self) -> Mapping[str, Member]:
        return self._hall.members.by_id

    @property
    def active(self) -> int:
        """The number of nodes that take part now."""
        return sum(member.active for member in self.members.values())


def waiting_for(nodes: int) -> str:
    return f"waiting for {nodes} more node{'s' if nodes > 1 else ''}"


def counted(count: int, what: str) -> str:
    """A number and its noun, in the plural where it has one."""
    return f"{count} {what}{'' if count == 1 else 's'}"


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
    """Figures of a whole run, over all terms of the coordinator, for the status call.

    tokens: of counted contributions. since_step: where this term began. nodes: with a counted contribution. shares:
    those with the most tokens, at most SHARES_TOLD_MAX. asked: the share of the node that the call asks for."""

    tokens: int
    since_step: int
    nodes: int
    shares: tuple[NodeShare, ...]
    asked: NodeShare
