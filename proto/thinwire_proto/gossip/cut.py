"""A consistent cut: states that all nodes save by themselves, and that fit together. Pure: events in, answers out.

The problem: each node saves at its own time, while others go on. If one state has mixed a message that its sender's
state has not sent yet, the sender sends it again after a restart, and the turn is mixed twice, or by one end only.

What fails: to save what has come so far. A peer may have saved, gone on, and sent another message meanwhile. A barrier
for all before each save holds up nodes that have nothing to do with each other, and still says nothing of messages
under way.

The sketch (Chandy and Lamport, Distributed snapshots, 1985): a node that saves sends a *mark* over each line, with the
iteration that it has begun, and waits for the marks of its peers. A line keeps its order. So what came before a mark
was sent before the peer's save, and is in this node's state; what comes after it stays in the line until this node has
saved. Nobody waits in an iteration for a peer whose mark is in, because that peer waits for this node.

At the mark of a peer in iteration p, a turn of this node's state is one of these:

    iteration ≤ p, and the message came        to be mixed, on both ends
    iteration ≤ p, and no message came         void: the peer has passed it without sending
    iteration > p                              open: this node sends its message again, as the peer has not read it

Saves have numbers, from 1, alike on all nodes. A node that cannot complete its save gives it up, and tells its peers,
who then do not complete theirs, or hold one that no restart can use.
"""

from __future__ import annotations

from collections.abc import Iterable


class Cut:
    """The saves of one node. number: of the newest that it has begun."""

    def __init__(self) -> None:
        self.number = 0
        self._done = 0
        self._marks: dict[tuple[int, int], int | None] = {}  # by peer and number; None: given up
        self._closed = False

    def begin(self) -> int:
        """This node saves now. Returns the number for its marks."""
        self.number += 1
        return self.number

    def end(self) -> None:
        """The state is complete, or the save was given up: read on."""
        self._done = self.number
        self._marks = {key: iteration for key, iteration in self._marks.items() if key[1] > self._done}

    def close(self) -> None:
        """This node saves no more."""
        self._closed = True

    def marked(self, peer: int, number: int, iteration: int) -> None:
        """The peer's mark is in. iteration: the newest that the peer had begun."""
        if number > self._done:
            self._marks[peer, number] = iteration

    def given_up(self, peer: int, number: int) -> None:
        """The peer cannot complete this save."""
        if number > self._done:
            self._marks[peer, number] = None

    def holds(self, peer: int) -> bool:
        """Whether the peer's next message was sent after a save that this node has not completed."""
        return self._is_marked(peer, beyond=self._done)

    def is_ahead(self, peer: int) -> bool:
        """Whether the peer waits for a save that this node has not begun."""
        return self._is_marked(peer, beyond=self.number)

    def missing(self, peers: Iterable[int]) -> list[int]:
        """Those of the peers whose mark of this save is not in."""
        return [peer for peer in peers if (peer, self.number) not in self._marks]

    def without(self, peers: Iterable[int]) -> list[int]:
        """Those of the peers that gave this save up."""
        return [peer for peer in peers if self._marks.get((peer, self.number), 0) is None]

    def is_open(self, peer: int, iteration: int) -> bool:
        """Whether a turn without a message can still be mixed after a restart; see the module."""
        mark = self._marks.get((peer, self.number))
        return mark is not None and iteration > mark

    def _is_marked(self, peer: int, beyond: int) -> bool:
        return not self._closed and any(
            there == peer and number > beyond and iteration is not None
            for (there, number), iteration in self._marks.items()
        )
