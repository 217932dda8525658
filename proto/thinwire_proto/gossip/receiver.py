"""One direction of an edge, where its messages arrive: the public copy of the peer, and what waits for its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.iteration import AHEAD_MAX
from thinwire_proto.gossip.message import SKIP, SNAPSHOT, Bodies, Message, PublicCopy, When
from thinwire_proto.gossip.sender import UNACKNOWLEDGED_MAX

HELD_MAX = UNACKNOWLEDGED_MAX + AHEAD_MAX
"""Messages of a peer that wait for their turn or their order. `IterationMachine.accepts` leaves more than AHEAD_MAX in
the line."""
RECENT_ITERATIONS = 32
"""A peer that was not heard of for longer pulls no gradient. An edge of 4,096 nodes is used once in 12 iterations."""


class Receiver:
    """theirs: the peer as this node knows it, with all messages whose turns are mixed or never will be. received: the
    last message that has come in order. newest: its turn. wants_snapshot: `theirs` has been found to differ."""

    def __init__(self, bodies: Bodies, start: Tensor, base: int, *, awaits_snapshot: bool) -> None:
        self.theirs = PublicCopy(bodies.layout, start)
        self.theirs.sequence = self.received = base
        self.newest: When = (-1, -1)
        self.wants_snapshot = False
        self.differences_found = 0
        self._bodies = bodies
        self._early: dict[int, Message] = {}  # ahead of their order
        self._held: deque[Message] = deque()  # in order, not in `theirs` yet
        self._awaits_snapshot = awaits_snapshot  # the first, which the peer sends unasked

    @property
    def first(self) -> Message | None:
        """The next message that `take` takes."""
        return self._held[0] if self._held else None

    @property
    def waiting(self) -> int:
        """Messages that are kept, at most HELD_MAX."""
        return len(self._held) + len(self._early)

    @property
    def is_right(self) -> bool:
        """Whether `theirs` is the peer's copy, as far as is known."""
        return not (self._awaits_snapshot or self.wants_snapshot)

    def has(self, sequence: int) -> bool:
        """Whether this message has come."""
        return sequence <= self.received or sequence in self._early

    def is_duplicate(self, message: Message) -> bool:
        """Whether a message came before. Raises PayloadError if the peer cannot have sent it."""
        if self.received < message.sequence <= self.received + UNACKNOWLEDGED_MAX:
            return False
        if not 1 <= message.sequence <= self.received:
            raise PayloadError(f"message {message.sequence} of an edge came after message {self.received}")
        return True

    def in_order(self, message: Message) -> Iterator[Message]:
        """Take a message, and go through those that are now there in order. Raises PayloadError."""
        if self.waiting >= HELD_MAX:
            raise PayloadError(f"{HELD_MAX} messages of an edge wait to be mixed already")
        self._early.setdefault(message.sequence, message)
        while (following := self._early.pop(self.received + 1, None)) is not None:
            if following.when <= self.newest:
                raise PayloadError(f"the message for turn {following.when} came after that for {self.newest}")
            self.received, self.newest = following.sequence, following.when
            yield following

    def hold(self, message: Message) -> None:
        """Let the newest message wait for its turn."""
        self._held.append(message)

    def holds(self, when: When) -> bool:
        """Whether a message for this turn waits."""
        return any(held.when == when and held.codec != SKIP for held in self._held)

    def knows_peer(self, iteration: int) -> bool:
        """Whether `theirs` is about what the peer has at this iteration."""
        return self.is_right and self.newest[1] >= iteration - RECENT_ITERATIONS

    def take(self) -> None:
        """Let `theirs` take the first message that waits. Raises PayloadError for a bad body."""
        message = self._held[0]
        self._bodies.advance(self.theirs, message.codec, message.body)
        if self.theirs.fingerprint() != message.fingerprint:
            self.differences_found += 1
            self.wants_snapshot = True
        elif message.codec == SNAPSHOT:
            self._awaits_snapshot = self.wants_snapshot = False
        self._held.popleft()

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """All that is kept, but messages that came early, which the peer sends again. See `Sender.state`."""
        held = [message.plain() for message in self._held]
        flags = [self._awaits_snapshot, self.wants_snapshot]
        return [self.theirs.sequence, held, self.received, list(self.newest), *flags], {"theirs": self.theirs.flat}

    def load(self, plain: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        sequence, held, self.received, newest, self._awaits_snapshot, self.wants_snapshot = plain
        self._held = deque(Message(*message) for message in held)
        self.newest = (newest[0], newest[1])
        self._early.clear()
        self.theirs = PublicCopy.at(self._bodies.layout, tensors["theirs"], sequence)
