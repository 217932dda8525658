"""Lines between this rank and its peers: messages over gloo, in order, read and written by threads of their own.

The problem: gloo waits for a message until it comes, and if a wait is given up, gloo closes the lines to all ranks. So
nobody may wait with a limit. And a message can be received only into a buffer that was given to gloo before, by the
tag that the sender chose.

The sketch: a head of a few numbers goes before each message, and says what follows. Each line has a thread that waits
for the next head, without a limit, and then for its message. If the peer's process ends, its line breaks, and the
thread reports it. Whoever trains waits for the thread's report instead, with a limit.

The buffer of a message that is sure to come is given to gloo beforehand, so that the peer's bytes need not wait for the
head. gloo never gives a buffer back unused, and a slow peer skips iterations that were sure to come. So all messages of
a line have one tag, and at most one buffer is given: the next message takes it, whichever iteration it is of.

Heads and messages have a connection each. On one, BBR would take the rate of small heads for that of the line, and send
the next message at a fiftieth of it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import IntEnum
from queue import SimpleQueue
from typing import NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.gossip.flat import Buffers
from thinwire.gossip.rendezvous import words_of

HEAD_TAG = 0
MESSAGE_TAG = 1
T = TypeVar("T")

UNBOUNDED = timedelta(days=3650)
"""The wait of a thread that ends with its line; see the module."""


class Kind(IntEnum):
    MESSAGE = 1
    """The parameters of an iteration follow."""
    AVERAGING = 2
    """The rank has entered `averaged`, and sends nothing until the others have too."""
    SAVING = 3
    """The rank has entered `state_dict`: the mark of `thinwire_proto.gossip.cut`."""
    FINISHED = 4
    """The last head of a rank."""
    UNSAVED = 5
    """The rank has left `state_dict` without a state."""
    PASSED = 6
    """The rank sends no more messages for turns up to this iteration."""
    RECEIVED = 7
    """The message of this iteration is here whole."""


class Head(NamedTuple):
    """iteration: of the message, or that the rank has passed; otherwise the newest that it has begun. times: how often
    the rank has averaged, or saved. size: of the message that follows, in bytes."""

    kind: int
    iteration: int
    times: int = 0
    size: int = 0


class LineLost(Exception):
    """The line to a peer is broken: its process or its machine is gone."""


class Listener(Protocol):
    """Gets what the lines report, from their threads."""

    def await_room(self, peer: int) -> None:
        """Return once the peer's next message, or what it has passed, may be read."""

    def on_message(self, peer: int, iteration: int, buffer: Tensor, size: int) -> None:
        """buffer: of `buffers`, whose first `size` bytes are the message."""

    def on_head(self, peer: int, head: Head) -> None: ...

    def on_lost(self, peer: int, reason: str) -> None: ...


class LineGroups(NamedTuple):
    """Two groups of the same ranks, with gloo, used by lines alone."""

    heads: dist.ProcessGroup
    messages: dist.ProcessGroup


class Line:
    """Both directions between this rank and a peer.

    peer: its rank in the groups. buffers: for messages that come; the listener gives them back."""

    def __init__(self, groups: LineGroups, peer: int, buffers: Buffers, listener: Listener) -> None:
        self._groups = groups
        self._peer = peer
        self._buffers = buffers
        self._listener = listener
        self._lock = threading.Lock()
        self._receiving: tuple[dist.Work, Tensor] | None = None  # the next message
        self._newest_expected = -1
        self._newest_read = -1
        self._outgoing: SimpleQueue[tuple[Head, Callable[[], Tensor] | None, Callable[[], None]]] = SimpleQueue()
        for name, run in (("read", self._read), ("write", self._write)):
            threading.Thread(target=self._guarded, args=(run,), name=f"gossip-{name}-{peer}", daemon=True).start()

    def expect(self, iteration: int) -> None:
        """The peer will send the message of this iteration, unless it is gone."""
        with self._lock:
            self._newest_expected = max(self._newest_expected, iteration)
            self._receive_expected()

    def send(self, head: Head, message: Callable[[], Tensor] | None, sent: Callable[[], None]) -> None:
        """Queue a head, and the message that follows it, uint8 in host memory. Both functions are called by the writing
        thread: `message` to get it, and `sent` when its buffer may be used again."""
        self._outgoing.put((head, message, sent))

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except LineLost as error:
            self._listener.on_lost(self._peer, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of the thread: nobody may wait for this peer
            self._listener.on_lost(self._peer, f"{type(error).__name__}: {error}")

    def _read(self) -> None:
        while True:
            head = self._head()
            if head.kind in {Kind.MESSAGE, Kind.PASSED}:
                self._listener.await_room(self._peer)
            if head.kind == Kind.MESSAGE:
                buffer = self._message(head.iteration)
                if not 0 <= head.size <= len(buffer):
                    raise LineLost(f"a message has {head.size} bytes; there may be {len(buffer)}")
                self._listener.on_message(self._peer, head.iteration, buffer, head.size)
                self.send(Head(Kind.RECEIVED, head.iteration), None, lambda: None)
            else:
                self._listener.on_head(self._peer, head)
            if head.kind == Kind.FINISHED:
                return

    def _head(self) -> Head:
        numbers = torch.zeros(len(Head._fields), dtype=torch.int64)
        _wait(_posted(lambda: self._groups.heads.recv([numbers], self._peer, HEAD_TAG)))
        return Head(*numbers.tolist())

    def _message(self, iteration: int) -> Tensor:
        with self._lock:
            work, buffer = self._receiving = self._receiving or _posted(self._receive)
        _wait(work)
        with self._lock:
            self._receiving = None
            self._newest_read = iteration
            self._receive_expected()
        return buffer

    def _receive_expected(self) -> None:
        if self._receiving is None and self._newest_expected > self._newest_read:
            try:
                self._receiving = self._receive()
            except RuntimeError:  # the peer is gone, which the reading thread reports
                return

    def _receive(self) -> tuple[dist.Work, Tensor]:
        buffer = self._buffers.take()
        return self._groups.messages.recv([buffer], self._peer, MESSAGE_TAG), buffer

    def _write(self) -> None:
        while True:
            head, message, sent = self._outgoing.get()
            numbers = torch.tensor(head)
            self._deliver(numbers, self._groups.heads, HEAD_TAG)
            if message is not None:
                self._deliver(message(), self._groups.messages, MESSAGE_TAG)
            sent()
            if head.kind == Kind.FINISHED:
                return

    def _deliver(self, tensor: Tensor, group: dist.ProcessGroup, tag: int) -> None:
        _wait(_posted(lambda: group.send([tensor], self._peer, tag)))


def _posted(post: Callable[[], T]) -> T:
    """Raises LineLost where gloo says that the line is broken."""
    try:
        return post()
    except RuntimeError as error:
        raise LineLost(words_of(error)) from error


def _wait(work: dist.Work) -> None:
    """Raises LineLost."""
    try:
        work.wait(UNBOUNDED)
    except RuntimeError as error:
        raise LineLost(words_of(error)) from error


class Outgoing(NamedTuple):
    """A message as `Line.send` takes it."""

    peer: int
    head: Head
    message: Callable[[], Tensor]
    sent: Callable[[], None]


class SendOrder:
    """The order in which a rank's messages go out: an iteration's once those of the iterations before have arrived.

    A rank's line is often the slowest part, and all its messages share it. Side by side, messages of a newer iteration
    only delay the older ones, for which peers wait already. Those of one iteration go out together. Nobody waits long
    for a peer that does not read: over one-way edges, a rank that only sends to it does not know whether it hangs.

    Pure: no socket and no clock. held_s: the longest time that a message holds up newer ones."""

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
