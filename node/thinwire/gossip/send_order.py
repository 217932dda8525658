"""The order in which a rank's messages go out: an iteration's once those of the iterations before have arrived.

A rank's line is often the slowest part, and all its messages share it. Side by side, messages of a newer iteration only
delay the older ones, for which peers wait already. Those of one iteration go out together. Nobody waits long for a peer
that does not read: over one-way edges, a rank that only sends to it does not know whether it hangs. Pure: no socket and
no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from thinwire.gossip.lines import Head


class Outgoing(NamedTuple):
    """A message as `Line.send` takes it."""

    peer: int
    head: Head
    message: Callable[[], Tensor]
    sent: Callable[[], None]


class SendOrder:
    """Messages that wait, and those on their way. held_s: the longest time that a message holds up newer ones."""

    def __init__(self, held_s: float) -> None:
        self._held_s = held_s
        self._waiting: deque[Outgoing] = deque()  # the oldest first
        self._on_the_way: dict[tuple[int, int], float] = {}  # by iteration and peer, when it was sent

    def add(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)

    def arrived(self, iteration: int, peer: int) -> None:
        """The peer says that it has this message."""
        self._on_the_way.pop((iteration, peer), None)

    def count(self, peer: int) -> int:
        """Messages to a peer that it has not said to have."""
        return sum(one.peer == peer for one in self._waiting) + sum(to == peer for _, to in self._on_the_way)

    def due(self, counts: Callable[[int], bool], now: float) -> Iterator[Outgoing]:
        """The messages to send now. counts: whether to wait until a peer has what was sent to it."""
        while self._waiting and now >= self.held_until(counts):
            yield self._take(now)

    def held_until(self, counts: Callable[[int], bool]) -> float:
        """When the next message is due at the latest. Infinity if none waits, and minus infinity if it is due."""
        if not self._waiting:
            return math.inf
        newest = self._waiting[0].head.iteration
        since = [at for (old, peer), at in self._on_the_way.items() if old < newest and counts(peer)]
        return max(since) + self._held_s if since else -math.inf

    def all(self, now: float) -> Iterator[Outgoing]:
        """All messages that wait, because something else follows them on the lines."""
        while self._waiting:
            yield self._take(now)

    def _take(self, now: float) -> Outgoing:
        outgoing = self._waiting.popleft()
        self._on_the_way[outgoing.head.iteration, outgoing.peer] = now
        return outgoing
