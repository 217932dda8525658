"""The order in which a rank's messages go out: an iteration's once those of the iterations before have arrived.

A rank's line is often the slowest part, and all its messages share it. Side by side, messages of a newer iteration only
delay the older ones, for which peers wait already. Those of one iteration go out together. Pure: no socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from thinwire_node.decentralized.lines import Head


class Outgoing(NamedTuple):
    """A message as `Line.send` takes it."""

    peer: int
    head: Head
    message: Callable[[], Tensor]
    sent: Callable[[], None]


class SendOrder:
    """Messages that wait, and those on their way."""

    def __init__(self) -> None:
        self._waiting: deque[Outgoing] = deque()  # the oldest first
        self._on_the_way: set[tuple[int, int]] = set()  # iteration, peer

    def add(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)

    def arrived(self, iteration: int, peer: int) -> None:
        """The peer says that it has this message."""
        self._on_the_way.discard((iteration, peer))

    def count(self, peer: int) -> int:
        """Messages to a peer that it has not said to have."""
        return sum(one.peer == peer for one in self._waiting) + sum(to == peer for _, to in self._on_the_way)

    def due(self, counts: Callable[[int], bool]) -> Iterator[Outgoing]:
        """The messages to send now. counts: whether to wait until a peer has what was sent to it."""
        while self._waiting:
            newest = self._waiting[0].head.iteration
            if any(iteration < newest and counts(peer) for iteration, peer in self._on_the_way):
                return
            yield self._take()

    def all(self) -> Iterator[Outgoing]:
        """All messages that wait, because something else follows them on the lines."""
        while self._waiting:
            yield self._take()

    def _take(self) -> Outgoing:
        outgoing = self._waiting.popleft()
        self._on_the_way.add((outgoing.head.iteration, outgoing.peer))
        return outgoing
