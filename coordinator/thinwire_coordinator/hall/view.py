"""A read-only view of a swarm, for the status call, the web page and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.shared import Shared

Stage = Literal["waiting", "training", "complete"]


class MemberView(Protocol):
    """The read-only part of a member."""

    @property
    def node_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def active(self) -> bool: ...


@dataclass(frozen=True)
class OpenRoundView:
    """The round that is open or being sealed.

    deadline: on the coordinator's clock, in seconds. accepted: contributions in the round. awaited: nodes that the
    round still waits for.
    """

    number: int
    deadline: float
    accepted: int
    awaited: int
    sealing: bool


class SwarmView:
    """A swarm, read-only. Each property gives the current value."""

    def __init__(self, shared: Shared) -> None:
        self.contract = shared.contract
        self.layout = shared.layout
        self.term = shared.term
        self.held_out_sets = shared.state.held_out_sets
        """The held-out sets that are measured."""
        self._feed = shared.feed
        self._registry = shared.registry
        self._driver = shared.driver
        self._tasks = shared.tasks
        self.gossip: GossipFigures | None = None
        """In a run without a centre."""

    @property
    def stage(self) -> Stage:
        if self.gossip is not None:
            return "training" if self.gossip.stage == "deposit" else self.gossip.stage
        if self._driver.complete:
            return "complete"
        return "waiting" if self._driver.round is None and self._driver.missing_nodes else "training"

    @property
    def condition(self) -> str:
        """The stage, in words."""
        if self.gossip is not None and self.gossip.stage == "deposit":
            return "collecting the parameters of all nodes"
        missing = self.gossip.missing if self.gossip is not None else self._driver.missing_nodes
        return f"waiting for {missing} more node{'s' if missing > 1 else ''}" if self.stage == "waiting" else self.stage

    @property
    def failed(self) -> bool:
        """Whether the coordinator cannot go on."""
        return self._tasks.failed.done()

    @property
    def now(self) -> float:
        """The coordinator's clock, in seconds."""
        return self._driver.now()

    @property
    def step(self) -> int:
        """The number of sealed updates; in a run without a centre, the iteration that all present members have done."""
        return self._feed.step if self.gossip is None else self.gossip.iterations[0]

    @property
    def steps(self) -> int:
        """The number of updates of the whole run."""
        return self.contract.schedule.steps

    @property
    def sealed_at(self) -> float:
        """When the newest update was sealed, on the coordinator's clock; before the first, when this process began."""
        return self._registry.sealed_at

    @property
    def measured_step(self) -> int:
        """The newest step whose held-out losses were measured, finite or not."""
        return self._registry.measured_step

    @property
    def round_number(self) -> int:
        """The number of the newest round that was opened."""
        return max(self._driver.next_round - 1, 0)

    @property
    def round(self) -> OpenRoundView | None:
        current = self._driver.round
        if current is None:
            return None
        accepted, awaited = len(current.accepted), self._driver.awaited
        return OpenRoundView(current.number, current.deadline, accepted, awaited, self._driver.sealing)

    @property
    def deadline(self) -> float | None:
        """The deadline of the current round, on the coordinator's clock; None if there is no round."""
        return None if self._driver.round is None else self._driver.round.deadline

    @property
    def members(self) -> Mapping[str, MemberView]:
        """All members, by node id."""
        return self._registry.members.by_id

    @property
    def active(self) -> int:
        """The number of nodes that take part now."""
        return sum(member.active for member in self.members.values())

    @property
    def watcher_failures(self) -> int:
        """The number of exceptions that the swarm's watchers raised."""
        return self._registry.events.failures

    @property
    def counts(self) -> Counts:
        return self._registry.counts
