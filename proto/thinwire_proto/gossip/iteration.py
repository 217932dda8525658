"""When a node that trains in a gossip run waits, mixes and goes on. Pure: events and times in, decisions out.

The problem: a node and its peer must both mix, or neither, and with the same two copies. Otherwise the mean of all
nodes moves. But messages are late, peers die, and nobody may wait for long.

What fails: if a node whose patience is over drops its peer's message, the peer, which had this node's message in time,
has mixed already. To acknowledge before mixing costs a round trip in each iteration, and the last acknowledgement can
be lost too.

The sketch: a *turn* is one use of an edge. Nothing is dropped. A node that has waited for its patience goes on without
a turn, and mixes it when the message comes, whichever iteration that is. It mixes the same difference of copies as its
peer, with the other sign. A message that never comes is one that the peer has not sent, and without sending it the
peer has not mixed the turn either. So once a later message of the peer is in, a turn without one is void on both ends.

Nobody waits for a peer that is known to be absent. A node that finds that its peers no longer wait for it skips to
their iteration, and the turns between are void. It says so to all its peers: one with which it has no turn soon would
otherwise wait for a message that never comes.

Over one-way edges (`push_sum`), a node begins an iteration with its sources alone, and no turn is void: what has come
counts, whatever this node sent. There, a source can be further ahead while all still wait for each other (`lead_of`).

    computing ──computed──▶ awaiting ──all in, but for what slack allows──▶ mix, step, send ──▶ computing
                                └──────peer absent, or patience over──────▶ mix, step, send ──▶ computing
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_proto.errors import ConfigError, LocalError

AHEAD_MAX = 8
"""Turns of a peer whose messages a node holds before it begins these turns itself. More, if its peers can lead by
more."""
SLACK_MAX = 4
"""A peer that waits is at most slack + 1 turns ahead, so this is less than AHEAD_MAX."""


@dataclass(frozen=True, order=True)
class Turn:
    """One use of an edge: the number of the topology, the iteration, and the other end."""

    topology: int
    iteration: int
    peer: int

    def plain(self) -> tuple[int, int, int]:
        """The turn as numbers. `dataclasses.astuple` takes ten times as long, and a state has many turns."""
        return self.topology, self.iteration, self.peer


@dataclass(frozen=True)
class Mix:
    """The decision to mix and to step.

    turns: those to mix, in order. missing: peers for which the node has waited in vain. reason: for people.
    """

    turns: tuple[Turn, ...]
    missing: tuple[int, ...]
    reason: str


def joined(first: Mix | None, then: Mix | None) -> Mix | None:
    """Both of two decisions. While iterations go on, one event brings one; after the last it may bring several."""
    if first is None or then is None:
        return first or then
    return Mix((*first.turns, *then.turns), (*first.missing, *then.missing), then.reason)


class IterationMachine:
    """The iterations of one node.

    slack: iterations that a message may be late before the node waits for it. patience_s: seconds that the node waits
    in an iteration at most. lead: turns that a peer can be ahead while all wait for each other; by default slack + 1.
    Raises ConfigError if slack or patience is out of range.
    """

    def __init__(self, slack: int, patience_s: float, lead: int | None = None) -> None:
        if not 0 <= slack <= SLACK_MAX or not patience_s > 0:
            raise ConfigError(f"slack must be 0 to {SLACK_MAX} and patience above 0; got {slack} and {patience_s:g} s")
        self._slack = slack
        self._patience_s = patience_s
        self._lead = slack + 1 if lead is None else lead
        self._begun = (-1, -1)  # topology and iteration
        self._open: set[Turn] = set()  # begun here; the peer's message is not in
        self._ahead: set[Turn] = set()  # the peer's message is in; not begun here
        self._ready: set[Turn] = set()  # both, and not mixed yet
        self._newest: dict[int, Turn] = {}  # of each peer, the turn of its last message
        self._absent: set[int] = set()
        self._parted: set[int] = set()  # their edges have ended
        self._deadline: float | None = None  # None while the node computes
        self._is_last = False
        self._is_over = False  # the last iteration is mixed

    @property
    def iteration(self) -> int:
        """The iteration that the node computes, or waits for; -1 before the first."""
        return self._begun[1]

    @property
    def topology(self) -> int:
        """The topology of that iteration; -1 before the first."""
        return self._begun[0]

    @property
    def next_iteration(self) -> int:
        """The iteration to begin after this one: the next, or that of peers that no longer wait for this node."""
        passed = [turn.iteration for turn in self._ahead if self._held(turn.peer) > self._lead]
        return max(self.iteration + 1, *passed) if passed else self.iteration + 1

    def accepts(self, peer: int) -> bool:
        """Whether the peer's next message may be read. If not, it stays in the line until this node has gone on."""
        return self._held(peer) < max(AHEAD_MAX, self._lead + 1)

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` goes on without those that are missing. None while the node computes."""
        return self._deadline

    @property
    def open(self) -> tuple[Turn, ...]:
        """Turns that this node has begun and may still mix, whose message is not in."""
        return tuple(sorted(self._open))

    @property
    def unmixed(self) -> int:
        """The number of turns that this node has begun and may still mix."""
        return len(self._open) + len(self._ready)

    @property
    def kept(self) -> frozenset[Turn]:
        """Turns that may still be mixed."""
        return frozenset(self._open | self._ahead | self._ready)

    @property
    def unfinished(self) -> frozenset[int]:
        """Peers with which a turn that this node has begun may still be mixed."""
        return frozenset(turn.peer for turn in self._ready | self._open)

    def begin(self, topology: int, iteration: int, peers: Iterable[int]) -> None:
        """The node has sent its messages for this iteration's turns, and starts to compute."""
        self._begun = (topology, iteration)
        for peer in peers:
            turn = Turn(topology, iteration, peer)
            if turn in self._ahead:
                self._ready.add(turn)
            elif turn > self._newest.get(peer, _before(peer)):
                self._open.add(turn)
            # otherwise the peer is past this turn and has not sent it
        self._ahead = {turn for turn in self._ahead if (turn.topology, turn.iteration) > self._begun}

    def hold(self, turns: Iterable[Turn]) -> None:
        """Messages of turns that this node has not begun are in since before it was loaded, whatever was read since."""
        for turn in turns:
            self._ahead.add(turn)
            self._newest[turn.peer] = max(turn, self._newest.get(turn.peer, _before(turn.peer)))

    def received(self, turn: Turn) -> Mix | None:
        """The message of a peer is in.

        Raises LocalError, and changes nothing, if the peer's messages are not read in the order in which it sent them,
        each once, or if the peer is not accepted.
        """
        newest = self._newest.get(turn.peer, _before(turn.peer))
        if turn <= newest:
            raise LocalError(
                f"node {turn.peer}: iteration {turn.iteration} was read after iteration {newest.iteration}"
            )
        if (turn.topology, turn.iteration) > self._begun:
            if not self.accepts(turn.peer):
                raise LocalError(f"node {turn.peer}: iteration {turn.iteration} was read in iteration {self.iteration}")
            self._ahead.add(turn)
        elif turn in self._open:
            self._ready.add(turn)
        # otherwise this node has passed the turn without sending, and the peer will not mix it either
        self._newest[turn.peer] = turn
        self._absent.discard(turn.peer)
        self._open = {left for left in self._open if left.peer != turn.peer or left > turn}
        return self._mix_if_all_in()

    def passed(self, peer: int, topology: int, iteration: int) -> Mix | None:
        """The peer will send no more messages for turns up to this one, so those without a message are void."""
        self._newest[peer] = max(Turn(topology, iteration, peer), self._newest.get(peer, _before(peer)))
        self._absent.discard(peer)
        self._open = {left for left in self._open if left.peer != peer or left > self._newest[peer]}
        return self._mix_if_all_in()

    def computed(self, now: float, *, is_last: bool = False) -> Mix | None:
        """The gradient of this iteration is there.

        is_last: of the run. The node waits for all that are missing, and mixes a later message as soon as it comes.
        """
        if is_last:
            self._is_last, self._slack = True, 0
            self._absent.clear()
            self._parted.clear()
        self._deadline = now + self._patience_s
        return self._mix_if_all_in()

    def absent(self, peer: int) -> Mix | None:
        """The peer is gone: do not wait for it until it is heard of."""
        self._absent.add(peer)
        return self._mix_if_all_in()

    def part(self, peer: int) -> Mix | None:
        """The edge with this peer has ended: what is still open is mixed when it comes, and nobody waits for it."""
        self._parted.add(peer)
        return self._mix_if_all_in()

    def reconsider(self) -> Mix | None:
        """Edges were given up, perhaps the last that the node has waited for."""
        return self._mix_if_all_in()

    def void(self, peer: int) -> Mix | None:
        """The peer sends no message for the turns that are open with it."""
        self._open = {turn for turn in self._open if turn.peer != peer}
        return self._mix_if_all_in()

    def present(self, peer: int) -> None:
        """The peer was absent for a reason that has passed: wait for it again."""
        self._absent.discard(peer)

    def tick(self, now: float) -> Mix | None:
        """Time has passed."""
        if self._deadline is None or now < self._deadline:
            return None
        missing = tuple(sorted({turn.peer for turn in self._awaited()}))
        self._absent.update(missing)
        return self._mix(f"nothing from {', '.join(map(str, missing))} within {self._patience_s:g} s", missing)

    def forget(self, peer: int) -> None:
        """The edge with this peer is given up: its turns are void."""
        for turns in (self._open, self._ahead, self._ready):
            turns.difference_update([turn for turn in turns if turn.peer == peer])
        self._newest.pop(peer, None)
        self._absent.discard(peer)
        self._parted.discard(peer)

    def state(self) -> list[Any]:
        """All that the machine knows, as lists of numbers, while the node computes."""
        if self._deadline is not None:
            raise LocalError("a machine is saved while the node computes")
        turns = (self._open, self._ahead, self._ready, self._newest.values())
        peers = sorted(self._absent), sorted(self._parted)
        return [list(self._begun), *(sorted(turn.plain() for turn in some) for some in turns), *peers, self._is_over]

    def load(self, state: Sequence[Any]) -> None:
        """Continue from `state`."""
        begun, open_, ahead, ready, newest, absent, parted, self._is_over = state
        self._begun = (begun[0], begun[1])
        self._open, self._ahead, self._ready = ({Turn(*turn) for turn in some} for some in (open_, ahead, ready))
        self._newest = {turn[2]: Turn(*turn) for turn in newest}
        self._absent, self._parted = set(absent), set(parted)
        self._deadline = None

    def _held(self, peer: int) -> int:
        return sum(turn.peer == peer for turn in self._ahead)

    def _awaited(self) -> list[Turn]:
        newest_due, away = self.iteration - self._slack, self._absent | self._parted
        return [turn for turn in self._open if turn.iteration <= newest_due and turn.peer not in away]

    @property
    def awaited(self) -> tuple[int, ...]:
        """Peers whose messages hold up the iteration that is computed."""
        return tuple(sorted({turn.peer for turn in self._awaited()}))

    def _mix_if_all_in(self) -> Mix | None:
        if self._is_over:
            return self._mix("a message has come after the last iteration") if self._ready else None
        if self._deadline is None or self._awaited():
            return None
        return self._mix(f"{len(self._open)} messages may come later" if self._open else "all messages are in")

    def _mix(self, reason: str, missing: tuple[int, ...] = ()) -> Mix:
        turns = tuple(sorted(self._ready))
        self._ready.clear()
        self._deadline = None
        self._is_over = self._is_over or self._is_last
        return Mix(turns, missing, reason)


def _before(peer: int) -> Turn:
    """An earlier turn than any that a peer sends."""
    return Turn(-1, -1, peer)
