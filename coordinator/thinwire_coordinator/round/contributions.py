"""A round, and the one state that each contribution to it is in. No clock, no network, no disk.

    state      event       next       what happened
    ARRIVING   ARRIVED     CHECKING   its last byte is here
    ARRIVING   REFUSED     ANSWERED   it broke off, came too late, or its node joined anew meanwhile
    CHECKING   PASSED      ACCEPTED   base and votes are in order, and the round is still open
    CHECKING   REFUSED     ANSWERED   they are not, or the round was over first
    ACCEPTED   ROUND_OVER  ANSWERED   the update is sealed, or the round is void

An event that the table does not know in a state raises, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from thinwire_proto.wire.rows import Counted


class State(Enum):
    ARRIVING = auto()
    CHECKING = auto()
    ACCEPTED = auto()
    ANSWERED = auto()


class Event(Enum):
    ARRIVED = auto()
    PASSED = auto()
    REFUSED = auto()
    ROUND_OVER = auto()


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.ARRIVING, Event.ARRIVED): State.CHECKING,
    (State.ARRIVING, Event.REFUSED): State.ANSWERED,
    (State.CHECKING, Event.PASSED): State.ACCEPTED,
    (State.CHECKING, Event.REFUSED): State.ANSWERED,
    (State.ACCEPTED, Event.ROUND_OVER): State.ANSWERED,
}


@dataclass(eq=False)
class Contribution:
    """One node's votes in a round. `Round` moves it from state to state.

    weight, samples, loss: what it claims. name: its hash, and arrived_us: when its last byte came; both from CHECKING
    on. seconds and microseconds are of the coordinator's clock.
    """

    node: str
    session: str
    weight: int
    samples: int
    loss: float
    began: float
    state: State = State.ARRIVING
    name: bytes = b""
    arrived_us: int = 0

    @property
    def counted(self) -> Counted:
        """Its entry in the update's row."""
        return Counted(self.node, self.name, self.weight, self.samples)


class Round:
    """A round from its announcement until its receipts are given.

    opened, deadline: seconds of the coordinator's clock. contributions_max: how many it takes at once, so that their
    weights add up to what an update can hold. awaited: nodes that it waits for.
    """

    def __init__(
        self, number: int, step: int, opened: float, deadline: float, contributions_max: int, awaited: set[str]
    ) -> None:
        self.number = number
        self.step = step
        self.opened = opened
        self.deadline = deadline
        self.awaited = awaited
        self.accepted: list[Contribution] = []
        """In the order in which they were accepted."""
        self._contributions_max = contributions_max
        self._unanswered: dict[str, list[Contribution]] = {}  # by node
        self._unanswered_count = 0
        self._named: dict[bytes, Contribution] = {}

    @property
    def full(self) -> bool:
        """Whether no other contribution fits, were all that arrive or are checked to be accepted."""
        return self._unanswered_count >= self._contributions_max

    def has_from(self, node: str, session: str) -> bool:
        """Whether a node has a contribution in this round; one that arrives counts for its session alone, since the
        session before may be a line that is dead."""
        return any(
            contribution.state is not State.ARRIVING or contribution.session == session
            for contribution in self._unanswered.get(node, ())
        )

    def has_whole_from(self, node: str) -> bool:
        """Whether a contribution of a node has arrived whole, and has no receipt yet."""
        return any(contribution.state is not State.ARRIVING for contribution in self._unanswered.get(node, ()))

    def named(self, name: bytes) -> Contribution | None:
        """The contribution with this hash, from CHECKING on, also when it is answered."""
        return self._named.get(name)

    def begin(self, contribution: Contribution) -> None:
        """Its header is here, and its payload is about to arrive."""
        if contribution.state is not State.ARRIVING or self.full:
            raise RuntimeError(f"round {self.number}: a contribution cannot begin: {contribution.state.name}")
        self._unanswered.setdefault(contribution.node, []).append(contribution)
        self._unanswered_count += 1

    def arrived(self, contribution: Contribution, name: bytes, arrived_us: int) -> None:
        if self.has_whole_from(contribution.node):
            raise RuntimeError(f"round {self.number}: a node has one contribution in it at most")
        self._move(contribution, Event.ARRIVED)
        contribution.name, contribution.arrived_us = name, arrived_us
        self._named[name] = contribution

    def accept(self, contribution: Contribution) -> None:
        self._move(contribution, Event.PASSED)
        self.accepted.append(contribution)
        self.awaited.discard(contribution.node)

    def refuse(self, contribution: Contribution) -> None:
        self._move(contribution, Event.REFUSED)

    def over(self, contribution: Contribution) -> None:
        """The round has ended, and with it an accepted contribution."""
        self._move(contribution, Event.ROUND_OVER)

    def _move(self, contribution: Contribution, event: Event) -> None:
        following = TRANSITIONS.get((contribution.state, event))
        mine = self._unanswered.get(contribution.node, [])
        if following is None or contribution not in mine:
            raise RuntimeError(
                f"round {self.number}: {event.name} cannot happen to a contribution in state {contribution.state.name}"
            )
        contribution.state = following
        if following is State.ANSWERED:
            mine.remove(contribution)
            self._unanswered_count -= 1
            if not mine:
                del self._unanswered[contribution.node]
