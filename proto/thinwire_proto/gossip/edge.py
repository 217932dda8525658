"""An edge: what its peer knows of a node, what the node knows of the peer, and the turns that both may mix.

The problem: a message C(x − h) means something only if both ends hold the same copy h, to the bit, and a turn keeps
the mean only if both ends mix the same two copies. But messages are lost, come twice or late, and both ends go on
meanwhile.

The sketch: messages of an edge are numbered in each direction, and applied in that order, each once. A message also
says for which turn it was sent. Mixing a turn takes both copies as they were after that turn's two messages:

    x ← x + γ·w·(theirs − own)

The other end computes the same difference with the other sign. `theirs` is advanced when its turn is mixed, or when it
is certain that the turn never will be; until then its messages wait. `own` has advanced further if the node sent for
later turns meanwhile. Then a second copy follows behind, by the messages that were sent.

Fingerprints find copies that differ nevertheless, because of a broken memory. The direction then gets a snapshot.

An edge of nodes that have been apart begins with two snapshots in each direction. Mixing the first moves each node by
half of a large distance. If the next message were a difference, it would have to carry that, and until it has, each
turn would mix the same distance again. By `sign`, which carries little of a few large numbers, such nodes drifted apart
for good (docs/log/decentralized.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire_proto.errors import LocalError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.message import SKIP, Bodies, Message, PublicCopy, When
from thinwire_proto.gossip.receiver import Receiver
from thinwire_proto.gossip.sender import Sender

SNAPSHOTS_FIRST = 2
"""An edge between nodes with nothing in common begins with so many in each direction."""


class Edge:
    """Both directions of an edge. start: the parameters that both ends began with, float32 [layout.parameters]; None if
    the ends have nothing in common, so that each sends snapshots first. base: messages count from the next number on,
    so that a number of an edge that these ends had before is not taken for one of this."""

    def __init__(self, layout: TileLayout, start: Tensor | None, device: torch.device, base: int = 0) -> None:
        begin = torch.zeros(layout.parameters, device=device) if start is None else start
        bodies = Bodies(layout)
        self._sender = Sender(bodies, begin, base, SNAPSHOTS_FIRST if start is None else 0)
        self._receiver = Receiver(bodies, begin, base, awaits_snapshot=start is None)
        self._open: dict[When, int] = {}  # turns sent for and neither mixed nor void, and their sequence numbers
        self._void: set[When] = set()  # turns of unconfirmed messages that neither end mixes

    @property
    def own(self) -> PublicCopy:
        """This node as the peer knows it."""
        return self._sender.own

    @property
    def theirs(self) -> PublicCopy:
        """The peer as this node knows it."""
        return self._receiver.theirs

    @property
    def differences_found(self) -> int:
        """How often `theirs` was found to differ from the peer's copy."""
        return self._receiver.differences_found

    @property
    def received(self) -> int:
        """The last message of the peer that has come in order, for a line that acknowledges by itself."""
        return self._receiver.received

    @property
    def waiting(self) -> int:
        """Messages of the peer that are kept, at most HELD_MAX."""
        return self._receiver.waiting

    @property
    def is_confirmed(self) -> bool:
        """Whether the peer has all that was sent for turns, but for void ones."""
        return all(message.codec == SKIP or message.when in self._void for message in self.unacknowledged())

    def has(self, sequence: int) -> bool:
        """Whether this message of the peer has come."""
        return self._receiver.has(sequence)

    def knows_peer(self, iteration: int) -> bool:
        """Whether `theirs` is about what the peer has at this iteration."""
        return self._receiver.knows_peer(iteration)

    def may_send_for(self, when: When) -> bool:
        """Whether a message for this turn, or past it, may be made. If not, the turn is void on both ends."""
        return self._sender.may_send_for(when)

    def unacknowledged(self) -> list[Message]:
        """The messages to send again when the line is back, in order."""
        return self._sender.unacknowledged()

    def send(self, when: When, x: Tensor, codec: str) -> Message:
        """Make the message for a turn, and advance `own` by it. Journal both before the message leaves.

        x: this node's parameters, float32 [layout.parameters]. Raises LocalError if the edge may not send, or if the
        turn is not newer than the last; PayloadError for the body of an older turn that the peer sent and this node did
        not. Both change nothing.
        """
        self._sender.check(when)
        self._take_passed(before=when)
        name, body = self._sender.body_for(x, codec)
        message = self._make(when, name, body)
        if when > self._receiver.newest or self._receiver.holds(when):
            self._open[when] = message.sequence
        else:
            self._void.add(when)  # the peer has passed it
        self._catch_up()
        return message

    def skip(self, when: When) -> Message:
        """Make a message that says that this node has passed all turns up to this one. Raises what `send` raises."""
        self._sender.check(when)
        self._take_passed(before=when)
        message = self._make(when, SKIP, b"")
        self._catch_up()
        return message

    def receive(self, message: Message) -> list[Message]:
        """Take a message of the peer. Returns those that are now there in order, usually one.

        A message that came before is dropped. Raises PayloadError if the peer cannot have sent it; bodies
        are read when they are mixed.
        """
        if self._receiver.is_duplicate(message):
            return []
        self._sender.check_acknowledged(message.acknowledged)
        arrived = []
        for following in self._receiver.in_order(message):
            self.acknowledge(following.acknowledged)
            if following.wants_snapshot:
                self._sender.snapshots_due = max(1, self._sender.snapshots_due)
            self._receiver.hold(following)
            self._void_passed(following.when)
            arrived.append(following)
        self._catch_up()
        return arrived

    def acknowledge(self, sequence: int) -> None:
        """The peer has all messages up to this one. Raises PayloadError if it cannot have them, or for a bad body that
        still waits."""
        self._sender.acknowledge(sequence)
        self._catch_up()

    def may_mix(self, when: When) -> bool:
        """Whether `difference` takes this turn now."""
        first = self._receiver.first
        return when in self._open and first is not None and first.when == when

    def difference(self, when: When) -> Tensor | None:
        """theirs − own at a turn, float32 [layout.parameters], once. None if the peer's copy is known to be wrong.

        Turns are mixed in their order. Raises LocalError for a turn that is not ready, PayloadError for a bad body.
        """
        if not self.may_mix(when):
            raise LocalError(f"turn {when} is not ready to be mixed")
        self._receiver.take()
        own = self._sender.copy_after(self._open[when])
        found = self.theirs.flat - own.flat if self._receiver.is_right else None
        del self._open[when]
        self._catch_up()
        return found

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """All that the edge holds but messages that came early, which the peer sends again: numbers, bytes and strings,
        and the copies, which are not cloned."""
        sender, own = self._sender.state()
        receiver, theirs = self._receiver.state()
        opened = sorted([*when, sequence] for when, sequence in self._open.items())
        return [sender, receiver, opened, sorted(self._void)], own | theirs

    def load(self, state: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        sender, receiver, opened, void = state
        self._sender.load(sender, tensors)
        self._receiver.load(receiver, tensors)
        self._open = {(topology, iteration): sequence for topology, iteration, sequence in opened}
        self._void = {(topology, iteration) for topology, iteration in void}

    # inside

    def _make(self, when: When, codec: str, body: bytes) -> Message:
        return self._sender.send(
            when,
            codec,
            body,
            received=self._receiver.received,
            wants_snapshot=self._receiver.wants_snapshot,
            is_needed=bool(self._open),
        )

    def _void_passed(self, newest: When) -> None:
        """The peer's messages for turns up to this one are in, so the open ones without a message are void."""
        for when in [when for when in self._open if when <= newest and not self._receiver.holds(when)]:
            if self._open.pop(when) > self._sender.acknowledged:  # the peer has gone on without it
                self._void.add(when)

    def _take_passed(self, before: When) -> None:
        """Take all messages at the head that will never be mixed, because this node sent for none of their turns."""
        while (first := self._receiver.first) is not None and first.when not in self._open:
            if not (first.when <= self._sender.last or first.when < before):
                return
            self._receiver.take()

    def _catch_up(self) -> None:
        """Take what will never be mixed, and drop what nobody needs."""
        self._take_passed(before=self._sender.last)
        self._void.difference_update(self._sender.drop(self._open))
