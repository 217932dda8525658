"""What a member knows of one peer: the edge with it, the messages that wait, and how much of them is on disk. Pure.

A message waits until the member knows its topology and has begun its edge. Two edges of a peer can have some: one that
stands, and one that begins anew.

How long an edge stays that a topology has ended: one end may have mixed a turn whose message the other end has not got,
because a line was lost meanwhile. If the other forgets the edge, it never mixes that turn, and the mean of all nodes
moves. So the edge stays until nothing is open: this node has mixed, or knows to be void, all turns that it has sent
for, and the peer has confirmed its messages for all others. A peer that has died confirms nothing, so an edge stays for
LINGER_ITERATIONS at most, and at most LINGERING_MAX of them do. An edge that begins anew waits for its older one so
long too, and the turns of the new one are void meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from thinwire_proto.contract.exchanges.gossip import LINGERING_MAX
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.sender import UNACKNOWLEDGED_MAX

SEQUENCE_BITS = 24
"""Messages of an edge count from 2²⁴ times the topology in which it began, so that none is taken for an older one's."""
UNREAD_MAX = 2 * UNACKNOWLEDGED_MAX
"""Messages of a peer that wait, of both edges."""
LINGER_ITERATIONS = 32


def first_sequence(since: int) -> int:
    """The number after which the messages of an edge count that began with this topology."""
    return since << SEQUENCE_BITS


def since_of(sequence: int) -> int:
    """The topology with which the edge of a message began."""
    return sequence >> SEQUENCE_BITS


@dataclass
class Peer:
    """since: the topology in which the edge began; None without an edge. renewed: the future topology with which it
    begins anew. ended: that of an edge which ended because of an unreadable message. lingers_from: the iteration in
    which the edge was found to have ended with something open. unread: messages in the order in which they came.
    arrived: turns of messages that were read, and whether the peer has passed them without exchanging; the iterations
    have not been told. in_state: the last message that is in the newest state. saved: the same of that on disk."""

    number: int
    since: int | None = None
    renewed: int | None = None
    ended: int | None = None
    lingers_from: int | None = None
    unread: deque[Message] = field(default_factory=deque)
    arrived: deque[tuple[Turn, bool]] = field(default_factory=deque)
    in_state: int = 0
    saved: int = 0

    def put(self, message: Message) -> None:
        """Keep a message, unless it waits already. Raises PayloadError if more wait than a peer sends."""
        if any(message.sequence == other.sequence for other in self.unread):
            return
        of_the_edge = len(self.unread_of(since_of(message.sequence)))
        if of_the_edge >= UNACKNOWLEDGED_MAX or len(self.unread) >= UNREAD_MAX:
            raise PayloadError(f"{of_the_edge} of its messages wait already")
        self.unread.append(message)

    def unread_of(self, since: int) -> list[Message]:
        """Those of the edge that began with this topology."""
        return [message for message in self.unread if since_of(message.sequence) == since]

    def lingers(self, iteration: int, others: Iterable[Peer]) -> bool:
        """Whether the edge, which has ended with something open, stays in this iteration. others: all peers."""
        if self.lingers_from is None:
            self.lingers_from = iteration
        place = (self.lingers_from, self.number)
        newer = sum(one.lingers_from is not None and (one.lingers_from, one.number) > place for one in others)
        return iteration < self.lingers_from + LINGER_ITERATIONS and newer < LINGERING_MAX

    def end(self) -> None:
        """The edge is given up. What is unread stays, because it may be of the edge that begins anew."""
        self.since = self.renewed = self.ended = self.lingers_from = None
        self.in_state = self.saved = 0
        self.arrived.clear()

    def plain(self) -> list[Any]:
        """All but what is unread, which the peer sends again."""
        arrived = [[*turn.plain(), is_passed] for turn, is_passed in self.arrived]
        return [self.number, self.since, self.renewed, self.ended, self.lingers_from, arrived]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Peer:
        """Continue from `plain`."""
        number, since, renewed, ended, lingers_from, arrived = plain
        turns = deque((Turn(*turn), is_passed) for *turn, is_passed in arrived)
        return cls(number, since, renewed, ended, lingers_from, arrived=turns)
