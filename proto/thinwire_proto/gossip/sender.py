"""One direction of an edge where its messages are made: the copy of this node, and what is not confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from thinwire_proto.errors import LocalError, PayloadError
from thinwire_proto.gossip.iteration import AHEAD_MAX
from thinwire_proto.gossip.message import SKIP, SNAPSHOT, Bodies, Message, PublicCopy, When

UNACKNOWLEDGED_MAX = 2 * AHEAD_MAX
"""Messages of a direction that are kept to be sent again, and so the furthest that one can come ahead of its order."""


class Sender:
    """own: this node as the peer knows it, with all messages that were made. last: the turn of the newest message.
    acknowledged: the newest that the peer has confirmed. snapshots_due: so many messages are snapshots from now on."""

    def __init__(self, bodies: Bodies, start: Tensor, base: int, snapshots_due: int) -> None:
        self.own = PublicCopy(bodies.layout, start)
        self.own.sequence = self.acknowledged = base
        self.last: When = (-1, -1)
        self.snapshots_due = snapshots_due
        self._bodies = bodies
        self._kept: deque[Message] = deque()  # for the peer, or for `_behind`
        self._behind: PublicCopy | None = None  # `own` after the oldest open turn, if that is not the last one sent

    @property
    def may_send(self) -> bool:
        """Whether the peer has confirmed enough. If not, it is not there, and the edge should be left out."""
        return len(self._kept) < UNACKNOWLEDGED_MAX

    def may_send_for(self, when: When) -> bool:
        """Whether a message for this turn, or past it, may be made. If not, the turn is void on both ends."""
        return self.may_send and when > self.last

    def check(self, when: When) -> None:
        """Raises LocalError if no message for this turn may be made."""
        if not self.may_send_for(when):
            raise LocalError(f"turn {when}: {len(self._kept)} messages wait, the last for turn {self.last}")

    def body_for(self, x: Tensor, codec: str) -> tuple[str, bytes]:
        """The codec's name and the body of the next message. Raises LocalError if x is out of bounds."""
        name = SNAPSHOT if self.snapshots_due else codec
        return name, self._bodies.encode(name, x, self.own)

    def send(
        self, when: When, codec: str, body: bytes, *, received: int, wants_snapshot: bool, is_needed: bool
    ) -> Message:
        """Make a message, and advance `own` by it. received, wants_snapshot: of the other direction. is_needed: whether
        `own` as it is now belongs to a turn that is still open."""
        if is_needed and self._behind is None:
            self._behind = self.own.clone()
        self._bodies.advance(self.own, codec, body)
        if codec != SKIP:
            self.snapshots_due = max(0, self.snapshots_due - 1)
        numbers = (*when, self.own.sequence, received)
        message = Message(*numbers, codec, self.own.fingerprint(), wants_snapshot, body)
        self._kept.append(message)
        self.last = when
        return message

    def acknowledge(self, sequence: int) -> None:
        """The peer has all messages up to this one. Raises PayloadError if it cannot have them."""
        self.check_acknowledged(sequence)
        self.acknowledged = max(self.acknowledged, sequence)

    def check_acknowledged(self, sequence: int) -> None:
        if not 0 <= sequence <= self.own.sequence:
            raise PayloadError(f"message {sequence} is acknowledged; {self.own.sequence} were sent")

    def unacknowledged(self) -> list[Message]:
        """The messages to send again when the line is back, in order."""
        return [message for message in self._kept if message.sequence > self.acknowledged]

    def copy_after(self, sequence: int) -> PublicCopy:
        """`own` as it was after the message of the oldest open turn."""
        if sequence == self.own.sequence:
            return self.own
        assert self._behind is not None, "an older turn than the last is open"
        for message in self._kept:
            if self._behind.sequence < message.sequence <= sequence:
                self._bodies.advance(self._behind, message.codec, message.body)
        return self._behind

    def drop(self, open_turns: Mapping[When, int]) -> list[When]:
        """Drop the messages that nobody needs, and return their turns. open_turns: with their messages' numbers."""
        if not open_turns or min(open_turns) == self.last:
            self._behind = None
        needed = self.acknowledged if self._behind is None else min(self.acknowledged, self._behind.sequence)
        dropped = []
        while self._kept and self._kept[0].sequence <= needed:
            dropped.append(self._kept.popleft().when)
        return dropped

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """All that is kept: plain values, and the copies by name, which are not cloned."""
        copies = {"own": self.own} | ({"behind": self._behind} if self._behind else {})
        sequences = {name: copy.sequence for name, copy in copies.items()}
        kept = [message.plain() for message in self._kept]
        plain = [sequences, kept, list(self.last), self.acknowledged, self.snapshots_due]
        return plain, {name: copy.flat for name, copy in copies.items()}

    def load(self, plain: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        sequences, kept, last, self.acknowledged, self.snapshots_due = plain
        self._kept = deque(Message(*message) for message in kept)
        self.last = (last[0], last[1])
        copies = {name: PublicCopy.at(self._bodies.layout, tensors[name], sequences[name]) for name in sequences}
        self.own, self._behind = copies["own"], copies.get("behind")
