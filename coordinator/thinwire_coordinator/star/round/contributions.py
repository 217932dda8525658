"""A round and the state of each contribution to it. This module uses no clock, no network and no disk.

    state      event       next       what happened
    ARRIVING   ARRIVED     CHECKING   the last byte arrived
    ARRIVING   REFUSED     ANSWERED   the transfer broke off or came too late, the node joined again meanwhile, or the
                                      signature is wrong
    CHECKING   PASSED      ACCEPTED   base and votes are valid, and the round is still open
    CHECKING   REFUSED     ANSWERED   base or votes are invalid, or the round ended first
    ACCEPTED   ROUND_OVER  ANSWERED   the update is sealed, or the round is void

An event without an entry for the current state raises RuntimeError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from thinwire_coordinator.hall.leases import SampleRange
from thinwire_coordinator.hall.ledger.signatures import NodeSignature
from thinwire_proto.wire.rows import Counted


class ContributionState(Enum):
    ARRIVING = auto()
    CHECKING = auto()
    ACCEPTED = auto()
    ANSWERED = auto()


class ContributionEvent(Enum):
    ARRIVED = auto()
    PASSED = auto()
    REFUSED = auto()
    ROUND_OVER = auto()


TRANSITIONS: dict[tuple[ContributionState, ContributionEvent], ContributionState] = {
    (ContributionState.ARRIVING, ContributionEvent.ARRIVED): ContributionState.CHECKING,
    (ContributionState.ARRIVING, ContributionEvent.REFUSED): ContributionState.ANSWERED,
    (ContributionState.CHECKING, ContributionEvent.PASSED): ContributionState.ACCEPTED,
    (ContributionState.CHECKING, ContributionEvent.REFUSED): ContributionState.ANSWERED,
    (ContributionState.ACCEPTED, ContributionEvent.ROUND_OVER): ContributionState.ANSWERED,
}


@dataclass(eq=False)
class Contribution:
    """One node's votes in a round. `Round` moves it from state to state.

    weight: by its samples and by the trust in the node; 0 if it will not be merged. samples, loss: what the node
    claims. began: when the transfer began, in seconds. signed: the node's signature, which is right from CHECKING on.
    name: the contribution's hash. arrived_us: when the last byte arrived, in microseconds. trained: the positions that
    it reports. name, arrived_us and trained are set from CHECKING on. Times are read from the coordinator's clock.
    """

    node: str
    session: str
    weight: int
    samples: int
    loss: float
    began: float
    signed: NodeSignature
    state: ContributionState = ContributionState.ARRIVING
    name: bytes = b""
    arrived_us: int = 0
    trained: tuple[SampleRange, ...] = ()

    @property
    def counted(self) -> Counted:
        return Counted(self.node, self.name, self.weight, self.samples)


class Round:
    """A round, from its announcement until the last receipt is given.

    opened, deadline: seconds on the coordinator's clock. contributions_max: how many contributions the round takes; the
    bound keeps the sum of their weights within what an update can hold. awaited: nodes that the round waits for.
    others: active nodes that it does not wait for. Who answers is in neither any more.
    """

    def __init__(
        self,
        number: int,
        step: int,
        opened: float,
        deadline: float,
        contributions_max: int,
        awaited: set[str],
        others: Collection[str],
    ) -> None:
        self.number = number
        self.step = step
        self.opened = opened
        self.deadline = deadline
        self.awaited = awaited
        self.others = set(others)
        self.accepted: list[Contribution] = []
        """Accepted contributions, in order of acceptance."""
        self._contributions_max = contributions_max
        self._unanswered: dict[str, list[Contribution]] = {}  # by node
        self._unanswered_count = 0
        self._named: dict[bytes, Contribution] = {}

    @property
    def full(self) -> bool:
        """Whether another contribution could exceed the limit, if all pending ones are accepted."""
        return self._unanswered_count >= self._contributions_max

    def has_from(self, node: str, session: str) -> bool:
        """Whether a node has a contribution in this round.

        A contribution that is still arriving counts only for its own session, because the connection of an older
        session may be dead.
        """
        return any(
            contribution.state is not ContributionState.ARRIVING or contribution.session == session
            for contribution in self._unanswered.get(node, ())
        )

    def has_whole_from(self, node: str) -> bool:
        """Whether a complete contribution of a node still waits for its receipt."""
        return any(
            contribution.state is not ContributionState.ARRIVING for contribution in self._unanswered.get(node, ())
        )

    def named(self, name: bytes) -> Contribution | None:
        """The contribution with this hash, once it has arrived; also after it was answered."""
        return self._named.get(name)

    def begin(self, contribution: Contribution) -> None:
        """Register a contribution whose header has arrived; its payload follows."""
        if contribution.state is not ContributionState.ARRIVING or self.full:
            raise RuntimeError(
                f"round {self.number}: cannot begin a contribution; its state is {contribution.state.name}, "
                f"the round is {'full' if self.full else 'not full'}"
            )
        self._unanswered.setdefault(contribution.node, []).append(contribution)
        self._unanswered_count += 1

    def arrived(self, contribution: Contribution, name: bytes, arrived_us: int) -> None:
        if self.has_whole_from(contribution.node):
            raise RuntimeError(f"round {self.number}: node {contribution.node} already has a contribution")
        self._move(contribution, ContributionEvent.ARRIVED)
        contribution.name, contribution.arrived_us = name, arrived_us
        self._named[name] = contribution

    def accept(self, contribution: Contribution) -> None:
        self._move(contribution, ContributionEvent.PASSED)
        self.accepted.append(contribution)
        self.answered(contribution.node)

    def answered(self, node: str) -> None:
        self.awaited.discard(node)
        self.others.discard(node)

    def refuse(self, contribution: Contribution) -> None:
        self._move(contribution, ContributionEvent.REFUSED)

    def over(self, contribution: Contribution) -> None:
        """Mark an accepted contribution as answered, because its round is over."""
        self._move(contribution, ContributionEvent.ROUND_OVER)

    def _move(self, contribution: Contribution, event: ContributionEvent) -> None:
        following = TRANSITIONS.get((contribution.state, event))
        mine = self._unanswered.get(contribution.node, [])
        if following is None or contribution not in mine:
            raise RuntimeError(
                f"round {self.number}: {event.name} cannot happen to a contribution in state {contribution.state.name}"
            )
        contribution.state = following
        if following is ContributionState.ANSWERED:
            mine.remove(contribution)
            self._unanswered_count -= 1
            if not mine:
                del self._unanswered[contribution.node]
