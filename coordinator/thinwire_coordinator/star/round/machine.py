"""The round machine decides when a round opens and when it ends, and gives the reason.

It uses no clock, no network and no disk. Callers pass `now` (seconds on any monotonic clock) and carry out the actions
that the machine returns.

    phase     event          next       what happens
    WAITING   enough nodes   OPEN       the round is announced, and its deadline is set
    OPEN      gathered       SEALING    all awaited nodes have delivered (barrier), or time is up: merge and seal
    OPEN      too few        WAITING    fewer than min_contributions: the round is void, the schedule does not advance
    SEALING   sealed         WAITING    the update is on disk and published
    SEALING   last sealed    COMPLETE   the update was the last of the schedule
    SEALING   not sealed     WAITING    the ledger is locked: the round is void, and nothing of it is on disk
    COMPLETE  extended       WAITING    an amendment adds steps
    WAITING   no step left   COMPLETE   the run went back to the model of its last step

A row that goes back to an earlier step takes a round number of its own while no round is open (`went_back`).

An event without an entry for the current phase raises RuntimeError and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from thinwire_coordinator.hall.events import TIME_IS_UP
from thinwire_coordinator.star.round.contributions import Contribution, Round
from thinwire_proto.contract import RoundSpec
from thinwire_proto.limits import prompt_answer_s, void_lasts_s


class Phase(Enum):
    WAITING = auto()
    OPEN = auto()
    SEALING = auto()
    COMPLETE = auto()


class RoundEvent(Enum):
    ENOUGH_NODES = auto()
    GATHERED = auto()
    TOO_FEW = auto()
    SEALED = auto()
    LAST_SEALED = auto()
    NOT_SEALED = auto()
    EXTENDED = auto()
    NO_STEP_LEFT = auto()


TRANSITIONS: dict[tuple[Phase, RoundEvent], Phase] = {
    (Phase.WAITING, RoundEvent.ENOUGH_NODES): Phase.OPEN,
    (Phase.OPEN, RoundEvent.GATHERED): Phase.SEALING,
    (Phase.OPEN, RoundEvent.TOO_FEW): Phase.WAITING,
    (Phase.SEALING, RoundEvent.SEALED): Phase.WAITING,
    (Phase.SEALING, RoundEvent.LAST_SEALED): Phase.COMPLETE,
    (Phase.SEALING, RoundEvent.NOT_SEALED): Phase.WAITING,
    (Phase.COMPLETE, RoundEvent.EXTENDED): Phase.WAITING,
    (Phase.WAITING, RoundEvent.NO_STEP_LEFT): Phase.COMPLETE,
}


@dataclass(frozen=True)
class Opened:
    """Announce this round to `nodes`."""

    round: int
    step: int
    deadline: float
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Gathered:
    """Merge and seal the contributions of these nodes, then call `sealed`."""

    round: int
    step: int
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Voided:
    """Record the round as void; its contributions are not counted."""

    round: int
    why: str


Action = Opened | Gathered | Voided

NOBODY_IS_LEFT = "nobody is left to wait for"
"""The `why` of a round that the machine ends begins with one of these two texts."""

MISSES_FORGIVEN = 1
"""After this many missed rounds, any call of a node makes rounds wait for it again; after more, only a contribution."""


@dataclass
class _ActiveNode:
    """A node that takes part in rounds."""

    awaited: bool = True  # whether the next round waits for it
    missed: int = 0  # consecutive rounds that waited for it in vain

    def miss(self) -> None:
        self.awaited = False
        self.missed += 1


class RoundMachine:
    """Decides when the rounds of one term open and end.

    steps: updates of the whole run. first_round: number of the first round. step: updates sealed so far. wait_for:
    nodes that the organizer wants present before the first round, in addition to min_contributions.
    """

    def __init__(self, spec: RoundSpec, steps: int, first_round: int, step: int, wait_for: int = 1) -> None:
        self._spec = spec
        self._steps = steps
        self._next_round = first_round
        self._wait_for = wait_for
        self._active: dict[str, _ActiveNode] = {}  # in order of arrival
        self._missed_before: dict[str, int] = {}  # of nodes that departed, the newest last
        self.round: Round | None = None
        """The round that is OPEN or SEALING."""
        self._beat: float | None = None  # deadline of the previous round
        self._not_before = float("-inf")
        self._stopped = False
        self._held = False
        self.step = step
        self.phase = Phase.WAITING if step < steps else Phase.COMPLETE

    @property
    def deadline(self) -> float | None:
        """The time to call `tick`, if no other event comes first; None if there is nothing to wait for."""
        if self._stopped:
            return None
        if self.phase is Phase.OPEN and self.round:
            if self._spec.pace == "barrier" and not self.round.awaited:
                return min(self.round.deadline, self._not_void_before(self.round))
            return self.round.deadline
        return self._not_before if self.phase is Phase.WAITING and self._enough() else None

    @property
    def sealing(self) -> bool:
        return self.phase is Phase.SEALING

    @property
    def complete(self) -> bool:
        """Whether all updates of the run are sealed."""
        return self.phase is Phase.COMPLETE

    @property
    def next_round(self) -> int:
        """The number of the next round to open."""
        return self._next_round

    @property
    def missing_nodes(self) -> int:
        """The number of active nodes that a round still needs to open."""
        return max(0, max(self._spec.min_contributions, self._wait_for) - len(self._active))

    @property
    def awaited(self) -> int:
        """The number of active nodes that the open round still waits for; 0 if none is open."""
        return len(self.round.awaited & self._active.keys()) if self.round and self.phase is Phase.OPEN else 0

    def attend(self, node: str, now: float, *, has_weight: bool = True) -> list[Action]:
        """Add a node that holds the head's parameters and wants to train.

        It may deliver to the open round. Later rounds wait for it, unless it has missed too many before it departed, or
        its votes have no weight: see `disregard`.
        """
        before = self._active.get(node)
        missed = self._missed_before.pop(node, 0) if before is None else before.missed
        self._active[node] = _ActiveNode(missed <= MISSES_FORGIVEN, missed)
        if not has_weight:
            self.disregard(node)
        return self._advance(now)

    def depart(self, node: str, now: float) -> list[Action]:
        """Remove a node that left or was lost. Its earlier contributions stay valid.

        Its misses are remembered, or a node that attends, sends nothing, and attends again would stretch every round.
        """
        self._miss(node)
        presence = self._active.pop(node, None)
        if presence is not None and presence.missed:
            self._missed_before[node] = presence.missed
            if len(self._missed_before) > self._spec.nodes_max:
                del self._missed_before[next(iter(self._missed_before))]
        return self.excuse(node, now)

    def heard(self, node: str) -> None:
        """Note that a node is alive, so that the next round waits for it.

        This has no effect after more than MISSES_FORGIVEN missed rounds. A node that is late every time would otherwise
        stretch every round to its full length.
        """
        presence = self._active.get(node)
        if presence is not None and presence.missed <= MISSES_FORGIVEN:
            presence.awaited = True

    def disregard(self, node: str) -> None:
        """Do not wait for a node in later rounds until one of its contributions is accepted.

        Used for nodes without weight, which could otherwise stretch each round by answering just before the deadline.
        If all active nodes are disregarded, rounds wait for all of them.
        """
        presence = self._active.get(node)
        if presence is not None:
            presence.awaited, presence.missed = False, MISSES_FORGIVEN + 1

    def excuse(self, node: str, now: float, *, has_nothing: bool = False) -> list[Action]:
        """Stop waiting for a node in this round, because it answered without a valid contribution.

        The round counts as missed: the answer may have come late and on purpose. has_nothing: the node says itself that
        it has nothing for this round. So it is alive (see `heard`), and if it says so while the round waits for others
        too, or soon after the opening, it delays nobody by much and has missed nothing.

        Why this matters: a contribution that comes after its round was over leaves its node without a lease in the next
        one. If the round after that did not wait for the node, its contribution could be late again, and so on.
        """
        if not (has_nothing and self._delays_nobody(node, now)):
            self._miss(node)
        if has_nothing:
            self.heard(node)
        if self.round is not None:
            self.round.answered(node)
        return self._advance(now)

    def _delays_nobody(self, node: str, now: float) -> bool:
        if self.round is None:
            return True
        others = (self.round.awaited & self._active.keys()) - {node}
        return bool(others) or now - self.round.opened <= prompt_answer_s(self._spec.length_s)

    def deliver(self, contribution: Contribution, to: Round, now: float) -> tuple[bool, list[Action]]:
        """Offer a complete, valid contribution to a round. Return whether it is accepted, and the resulting actions.

        A contribution exactly at the deadline is still accepted.
        """
        actions = self._advance(now) if self._over(now) else []
        self.heard(contribution.node)
        if self.phase is not Phase.OPEN or to is not self.round:
            return False, actions
        to.accept(contribution)
        if contribution.node in self._active:
            self._active[contribution.node] = _ActiveNode()
        return True, self._advance(now)

    def tick(self, now: float) -> list[Action]:
        """React to the passing of time."""
        return self._advance(now)

    def sealed(self, now: float) -> list[Action]:
        """Note that the update of the gathered round is on disk."""
        last = self.step + 1 >= self._steps
        self._move(RoundEvent.LAST_SEALED if last else RoundEvent.SEALED)
        self.step += 1
        self.round = None
        return self._advance(now)

    def not_sealed(self, why: str, now: float) -> list[Action]:
        """Note that the update of the gathered round could not be written, and is not on disk: the round is void."""
        current = self.round
        self._move(RoundEvent.NOT_SEALED)
        assert current is not None
        return [self._void(current, why)]

    def hold(self, now: float, *, held: bool) -> list[Action]:
        """Open no round while held. An open one ends as it would."""
        self._held = held
        return self._advance(now)

    def amend(self, spec: RoundSpec, steps: int, now: float) -> list[Action]:
        """Go on under another contract. No round is open, or the one that was gathered is on disk."""
        self._spec, self._steps = spec, steps
        if self.phase is Phase.COMPLETE and self.step < steps:
            self._move(RoundEvent.EXTENDED)
        elif self.phase is Phase.WAITING and self.step >= steps:
            self._move(RoundEvent.NO_STEP_LEFT)
        return self._advance(now)

    def went_back(self) -> None:
        """Note that a row without contributions is sealed, between two rounds."""
        self.step += 1
        self._next_round += 1

    def stop(self) -> None:
        """Open and end no round any more. One that is being sealed may still be sealed."""
        self._stopped = True

    def _advance(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if self._stopped:
            return actions
        if self.phase is Phase.OPEN:
            actions += self._close(now)
            if self.round is None:
                return actions  # a void round is carried out first: what is amended then holds for the next one
        if self.phase is Phase.WAITING and self._enough() and now >= self._not_before:
            actions.append(self._open(now))
        return actions

    def _enough(self) -> bool:
        if self._held:
            return False
        on_the_clock = self._spec.pace == "clock" and self._wait_for <= len(self._active)
        return on_the_clock or self.missing_nodes == 0

    def _open(self, now: float) -> Opened:
        length = self._spec.length_s
        start = now
        if self._spec.pace == "clock" and self._beat is not None and now < self._beat + length:
            start = self._beat  # rounds run from deadline to deadline, so sealing shortens the next round
        self._move(RoundEvent.ENOUGH_NODES)
        self._wait_for = 0
        awaited = {node for node, presence in self._active.items() if presence.awaited} or set(self._active)
        number, deadline = self._next_round, start + length
        others = self._active.keys() - awaited
        self.round = Round(number, self.step, now, deadline, self._spec.nodes_max, awaited, others)
        self._next_round += 1
        return Opened(number, self.step, deadline, tuple(self._active))

    def _over(self, now: float) -> bool:
        return self.phase is Phase.OPEN and self.round is not None and now > self.round.deadline

    def _close(self, now: float) -> list[Action]:
        current = self.round
        assert current is not None
        time_is_up = self._over(now)
        all_delivered = self._spec.pace == "barrier" and not current.awaited and now >= self._not_void_before(current)
        if not (time_is_up or all_delivered):
            return []
        for node in current.awaited & self._active.keys():
            self._active[node].miss()
        self._beat = current.deadline
        why = TIME_IS_UP if time_is_up else NOBODY_IS_LEFT
        if len(current.accepted) >= self._spec.min_contributions:
            self._move(RoundEvent.GATHERED)
            nodes = tuple(contribution.node for contribution in current.accepted)
            return [Gathered(current.number, self.step, nodes, why)]
        self._move(RoundEvent.TOO_FEW)
        count = len(current.accepted)
        return [self._void(current, f"{why} and {count} of {self._spec.min_contributions} contributions arrived")]

    def _void(self, current: Round, why: str) -> Voided:
        self.round = None
        self._not_before = current.opened + void_lasts_s(self._spec.length_s)
        return Voided(current.number, why)

    def _not_void_before(self, current: Round) -> float:
        """The time up to which a round that would be void waits for nodes that are not awaited. It costs nothing, since
        the next one could not open earlier.

        Without it, a node that says at once that it has nothing ends each round before others, which were late a few
        times, can contribute and so be awaited again.
        """
        waits = len(current.accepted) < self._spec.min_contributions and current.others & self._active.keys()
        return current.opened + (void_lasts_s(self._spec.length_s) if waits else 0.0)

    def _miss(self, node: str) -> None:
        """Note that a node will not contribute to the open round, if that waits for it."""
        if self.phase is Phase.OPEN and self.round is not None and node in self.round.awaited and node in self._active:
            self._active[node].miss()

    def _move(self, event: RoundEvent) -> None:
        following = TRANSITIONS.get((self.phase, event))
        if following is None:
            raise RuntimeError(f"round machine: {event.name} cannot happen in phase {self.phase.name}")
        self.phase = following
