"""Messages of peers that a member has not read yet. Pure.

A message waits until the member knows its topology and has begun its edge. Two edges of a peer can have some: one that
stands, and one that begins anew.
"""

from __future__ import annotations

from collections import deque

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.copies import UNACKNOWLEDGED_MAX, Message

SEQUENCE_BITS = 24
"""Messages of an edge count from 2²⁴ times the topology in which it began, so that none is taken for an older one's."""
UNREAD_MAX = 2 * UNACKNOWLEDGED_MAX
"""Of a peer, of both edges."""


def first_sequence(since: int) -> int:
    """The number after which the messages of an edge count that began with this topology."""
    return since << SEQUENCE_BITS


def since_of(sequence: int) -> int:
    """The topology with which the edge of a message began."""
    return sequence >> SEQUENCE_BITS


class Unread:
    """By peer, in the order in which they came."""

    def __init__(self) -> None:
        self._of: dict[int, deque[Message]] = {}

    def put(self, peer: int, message: Message) -> None:
        """Keep a message, unless it waits already. Raises PayloadError if more wait than a peer sends."""
        waiting = self._of.setdefault(peer, deque())
        if any(message.sequence == other.sequence for other in waiting):
            return
        of_the_edge = len(self.of_edge(peer, since_of(message.sequence)))
        if of_the_edge >= UNACKNOWLEDGED_MAX or len(waiting) >= UNREAD_MAX:
            raise PayloadError(f"{of_the_edge} of its messages wait already")
        waiting.append(message)

    def first(self, peer: int) -> Message | None:
        """The next message to read."""
        waiting = self._of.get(peer)
        return waiting[0] if waiting else None

    def of_edge(self, peer: int, since: int) -> list[Message]:
        """Those of the edge that began with this topology."""
        return [message for message in self._of.get(peer, ()) if since_of(message.sequence) == since]

    def drop_first(self, peer: int) -> None:
        self._of[peer].popleft()

    def forget(self, peer: int) -> None:
        self._of.pop(peer, None)
