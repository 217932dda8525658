"""The public copies of a node: for each edge, what its peer knows of it, and what it knows of the peer.

The problem: a message C(x − h) means something only if both ends hold the same copy h, to the bit, and a turn keeps
the mean only if both ends mix the same two copies. But messages are lost, come twice or late, and both ends go on
meanwhile.

What fails: a copy a node, shared by all its neighbours, takes less memory. But then each message must reach each
neighbour, also those that it does not mix with in this iteration, and one that is late for one neighbour holds the copy
of all. Here most graphs give a node one peer in an iteration. So each edge has its own two copies: 8 bytes a parameter.

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

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from thinwire_proto.errors import ConfigError, LocalError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.bounds import MixBounds
from thinwire_proto.gossip.codec import Codec, make_codec
from thinwire_proto.gossip.iteration import AHEAD_MAX, Turn
from thinwire_proto.gossip.public_copy import PublicCopy
from thinwire_proto.gossip.pull import pull

SNAPSHOT = "snapshot"
"""In place of a codec's name: the body is the copy itself, as a difference from 0."""
SKIP = "skip"
"""In place of a codec's name: there is no body, and the sender has passed this turn without a message for it."""
UNACKNOWLEDGED_MAX = 2 * AHEAD_MAX
"""Messages of a direction that are kept to be sent again, and so the furthest that one can come ahead of its order."""
HELD_MAX = UNACKNOWLEDGED_MAX + AHEAD_MAX
"""Messages of a peer that wait for their turn or their order. `IterationMachine.accepts` leaves more than AHEAD_MAX in
the line."""
SNAPSHOTS_FIRST = 2
"""An edge between nodes with nothing in common begins with so many in each direction."""
RECENT_ITERATIONS = 32
"""A peer that was not heard of for longer pulls no gradient. An edge of 4,096 nodes is used once in 12 iterations."""
CODECS_MAX = 16
"""Codecs that are kept ready. A peer may name another one in each message."""

When = tuple[int, int]
"""Topology and iteration: a turn, as both ends name it."""


@dataclass(frozen=True)
class Message:
    """A message of one direction of an edge.

    sequence: counts from 1. acknowledged: the last message of the other direction that has come in order. fingerprint:
    of a part of the copy after this message. wants_snapshot: the sender's copy of the receiver differs.
    """

    topology: int
    iteration: int
    sequence: int
    acknowledged: int
    codec: str
    fingerprint: int
    wants_snapshot: bool
    body: bytes

    @property
    def when(self) -> When:
        return self.topology, self.iteration

    def plain(self) -> tuple[Any, ...]:
        """The fields, in their order."""
        return tuple(_fields_of(self))


_fields_of = attrgetter(*(field.name for field in fields(Message)))


class Edge:
    """Both directions of an edge. start: the parameters that both ends began with, float32 [layout.parameters]; None if
    the ends have nothing in common, so that each sends snapshots first. base: messages count from the next number on,
    so that a number of an edge that these ends had before is not taken for one of this."""

    def __init__(self, layout: TileLayout, start: Tensor | None, device: torch.device, base: int = 0) -> None:
        begin = torch.zeros(layout.parameters, device=device) if start is None else start
        self.own, self.theirs = PublicCopy(layout, begin), PublicCopy(layout, begin)
        self.differences_found = self.duplicates = 0
        self._layout = layout
        self._codecs: dict[str, Codec] = {}
        self._behind: PublicCopy | None = None  # `own` after the oldest open turn, if that is not the last one sent
        self._sent: deque[Message] = deque()  # for the peer, or for `_behind`
        self._open: dict[When, int] = {}  # turns sent for and neither mixed nor void, and their sequence numbers
        self._void: set[When] = set()  # turns of unconfirmed messages that neither end mixes
        self._last_sent: When = (-1, -1)
        self.own.sequence = self.theirs.sequence = base
        self._acknowledged = base  # of what was sent
        self._received = base  # in order
        self._early: dict[int, Message] = {}  # ahead of their order
        self._held: deque[Message] = deque()  # in order, not in `theirs` yet
        self._newest: When = (-1, -1)
        self._snapshots_due = SNAPSHOTS_FIRST if start is None else 0
        self._awaits_snapshot = start is None  # the first, which the peer sends unasked
        self._wants_snapshot = False

    @property
    def may_send(self) -> bool:
        """Whether the peer has confirmed enough. If not, it is not there, and the edge should be left out."""
        return len(self._sent) < UNACKNOWLEDGED_MAX

    def may_send_for(self, when: When) -> bool:
        """Whether a message for this turn, or past it, may be made. If not, the turn is void on both ends."""
        return self.may_send and when > self._last_sent

    def send(self, when: When, x: Tensor, codec: str) -> Message:
        """Make the message for a turn, and advance `own` by it. Journal both before the message leaves.

        x: this node's parameters, float32 [layout.parameters]. Raises LocalError if the edge may not send, or if the
        turn is not newer than the last; PayloadError for the body of an older turn that the peer sent and this node did
        not. Both change nothing.
        """
        self._check_may_send(when)
        self._take_passed(before=when)
        name = SNAPSHOT if self._snapshots_due else codec
        body = self._codec(name).encode(x if name == SNAPSHOT else x - self.own.flat)
        self._keep_behind()
        self._advance(self.own, name, body)
        self._snapshots_due = max(0, self._snapshots_due - 1)
        if when > self._newest or any(held.when == when and held.codec != SKIP for held in self._held):
            self._open[when] = self.own.sequence
        else:
            self._void.add(when)  # the peer has passed it
        return self._sent_as(when, name, body)

    def skip(self, when: When) -> Message:
        """Make a message that says that this node has passed all turns up to this one. Raises what `send` raises."""
        self._check_may_send(when)
        self._take_passed(before=when)
        self._keep_behind()
        self.own.skip()
        return self._sent_as(when, SKIP, b"")

    def unacknowledged(self) -> list[Message]:
        """The messages to send again when the line is back, in order."""
        return [message for message in self._sent if message.sequence > self._acknowledged]

    def receive(self, message: Message) -> list[Message]:
        """Take a message of the peer. Returns those that are now there in order, usually one.

        A message that came before is counted and dropped. Raises PayloadError if the peer cannot have sent it; bodies
        are read when they are mixed.
        """
        if not self._received < message.sequence <= self._received + UNACKNOWLEDGED_MAX:
            if 1 <= message.sequence <= self._received:
                self.duplicates += 1
                return []
            raise PayloadError(f"message {message.sequence} of an edge came after message {self._received}")
        self._check_acknowledged(message.acknowledged)
        if self.waiting >= HELD_MAX:
            raise PayloadError(f"{HELD_MAX} messages of an edge wait to be mixed already")
        self._early.setdefault(message.sequence, message)
        arrived = []
        while (following := self._early.pop(self._received + 1, None)) is not None:
            if following.when <= self._newest:
                raise PayloadError(f"the message for turn {following.when} came after that for {self._newest}")
            self._received, self._newest = following.sequence, following.when
            self.acknowledge(following.acknowledged)
            if following.wants_snapshot:
                self._snapshots_due = max(1, self._snapshots_due)
            ready = {held.when for held in [*self._held, following] if held.codec != SKIP}
            for when in [when for when in self._open if when <= following.when and when not in ready]:
                if self._open.pop(when) > self._acknowledged:  # the peer has gone on without it
                    self._void.add(when)
            self._held.append(following)
            arrived.append(following)
        self._catch_up()
        return arrived

    @property
    def received(self) -> int:
        """The last message of the peer that has come in order, for a line that acknowledges by itself."""
        return self._received

    def has(self, sequence: int) -> bool:
        """Whether this message of the peer has come."""
        return sequence <= self._received or sequence in self._early

    def acknowledge(self, sequence: int) -> None:
        """The peer has all messages up to this one. Raises PayloadError if it cannot have them, or for a bad body that
        still waits."""
        self._check_acknowledged(sequence)
        self._acknowledged = max(self._acknowledged, sequence)
        self._catch_up()

    @property
    def is_confirmed(self) -> bool:
        """Whether the peer has all that was sent for turns, but for void ones."""
        return all(message.codec == SKIP or message.when in self._void for message in self.unacknowledged())

    @property
    def waiting(self) -> int:
        """Messages of the peer that are kept, at most HELD_MAX."""
        return len(self._held) + len(self._early)

    def may_mix(self, when: When) -> bool:
        """Whether `difference` takes this turn now."""
        return when in self._open and bool(self._held) and self._held[0].when == when

    def knows_peer(self, iteration: int) -> bool:
        """Whether `theirs` is about what the peer has at this iteration."""
        return not (self._awaits_snapshot or self._wants_snapshot) and self._newest[1] >= iteration - RECENT_ITERATIONS

    def difference(self, when: When) -> Tensor | None:
        """theirs − own at a turn, float32 [layout.parameters], once. None if the peer's copy is known to be wrong.

        Turns are mixed in their order. Raises LocalError for a turn that is not ready, PayloadError for a bad body.
        """
        if not self.may_mix(when):
            raise LocalError(f"turn {when} is not ready to be mixed")
        self._take(self._held[0])
        self._held.popleft()
        own = self.own if self._open[when] == self.own.sequence else self._catch_behind_up(self._open[when])
        found = None if self._awaits_snapshot or self._wants_snapshot else self.theirs.flat - own.flat
        del self._open[when]
        self._catch_up()
        return found

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """All that the edge holds but messages that came early, which the peer sends again: numbers, bytes and strings,
        and the copies, which are not cloned."""
        kept = [
            [message.plain() for message in self._sent],
            [message.plain() for message in self._held],
            sorted([*when, sequence] for when, sequence in self._open.items()),
            list(self._last_sent),
            self._acknowledged,
            self._received,
            list(self._newest),
            self._snapshots_due,
            self._awaits_snapshot,
            self._wants_snapshot,
            sorted(self._void),
        ]
        copies = {"own": self.own, "theirs": self.theirs} | ({"behind": self._behind} if self._behind else {})
        kept.append({name: copy.sequence for name, copy in copies.items()})
        return kept, {name: copy.flat for name, copy in copies.items()}

    def load(self, state: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        sent, held, open_, last_sent, *numbers, newest, due, awaits, wants, void, sequences = state
        self._sent = deque(Message(*message) for message in sent)
        self._held = deque(Message(*message) for message in held)
        self._open = {(topology, iteration): sequence for topology, iteration, sequence in open_}
        self._last_sent, self._newest = (last_sent[0], last_sent[1]), (newest[0], newest[1])
        self._acknowledged, self._received = numbers
        self._snapshots_due, self._awaits_snapshot, self._wants_snapshot = due, awaits, wants
        self._void = {(topology, iteration) for topology, iteration in void}
        self._early.clear()
        copies = {name: PublicCopy(self._layout, tensors[name]) for name in sequences}
        for name, copy in copies.items():
            copy.sequence = sequences[name]
        self.own, self.theirs, self._behind = copies["own"], copies["theirs"], copies.get("behind")

    # inside

    def _check_may_send(self, when: When) -> None:
        if not self.may_send_for(when):
            raise LocalError(f"turn {when}: {len(self._sent)} messages wait, the last for turn {self._last_sent}")

    def _keep_behind(self) -> None:
        """`own` is about to advance past an open turn."""
        if self._open and self._behind is None:
            self._behind = self.own.clone()

    def _sent_as(self, when: When, name: str, body: bytes) -> Message:
        numbers = (*when, self.own.sequence, self._received)
        message = Message(*numbers, name, self.own.fingerprint(), self._wants_snapshot, body)
        self._sent.append(message)
        self._last_sent = when
        self._catch_up()
        return message

    def _check_acknowledged(self, sequence: int) -> None:
        if not 0 <= sequence <= self.own.sequence:
            raise PayloadError(f"message {sequence} is acknowledged; {self.own.sequence} were sent")

    def _take_passed(self, before: When) -> None:
        """Take all messages at the head that will never be mixed, because this node sent for none of their turns."""
        while self._held and self._held[0].when not in self._open:
            if not (self._held[0].when <= self._last_sent or self._held[0].when < before):
                return
            self._take(self._held[0])
            self._held.popleft()

    def _catch_up(self) -> None:
        """Take what will never be mixed, and drop what nobody needs."""
        self._take_passed(before=self._last_sent)
        if not self._open or min(self._open) == self._last_sent:
            self._behind = None
        needed = self._acknowledged if self._behind is None else min(self._acknowledged, self._behind.sequence)
        while self._sent and self._sent[0].sequence <= needed:
            self._void.discard(self._sent.popleft().when)

    def _take(self, message: Message) -> None:
        self._advance(self.theirs, message.codec, message.body)
        if self.theirs.fingerprint() != message.fingerprint:
            self.differences_found += 1
            self._wants_snapshot = True
        elif message.codec == SNAPSHOT:
            self._awaits_snapshot = self._wants_snapshot = False

    def _catch_behind_up(self, sequence: int) -> PublicCopy:
        assert self._behind is not None, "an older turn than the last is open"
        for message in self._sent:
            if self._behind.sequence < message.sequence <= sequence:
                self._advance(self._behind, message.codec, message.body)
        return self._behind

    def _advance(self, copy: PublicCopy, codec: str, body: bytes) -> None:
        if codec == SKIP:
            if body:
                raise PayloadError("a message that skips turns has a body")
            copy.skip()
            return
        copy.advance(self._codec(codec).decode(body, copy.flat.device), is_whole=codec == SNAPSHOT)

    def _codec(self, name: str) -> Codec:
        """Raises PayloadError if there is no such codec."""
        if name not in self._codecs:
            try:
                made = make_codec("dense" if name == SNAPSHOT else name, self._layout)
            except ConfigError as error:
                raise PayloadError(str(error)) from None
            if len(self._codecs) >= CODECS_MAX:
                self._codecs.pop(next(iter(self._codecs)))
            self._codecs[name] = made
        return self._codecs[name]


class Copies:
    """The edges of a node, and how far it mixes.

    gamma: γ, the fraction of the way to the peers' copies, above 0 and at most 1. Raises ConfigError if it is not.
    bounds: how far a peer may move the node; by default as far as it likes.
    """

    def __init__(self, layout: TileLayout, gamma: float = 1.0, bounds: MixBounds | None = None) -> None:
        if not 0 < gamma <= 1:
            raise ConfigError(f"gamma must be above 0 and at most 1; it is {gamma:g}")
        self._layout = layout
        self._gamma = gamma
        self._bounds = bounds
        self.edges: dict[int, Edge] = {}

    def join(self, peer: int, start: Tensor | None, device: torch.device | str = "cpu", base: int = 0) -> Edge:
        """Begin an edge; see `Edge`. An older edge with this peer is forgotten."""
        self.edges[peer] = Edge(self._layout, start, torch.device(device), base)
        return self.edges[peer]

    def leave(self, peer: int) -> None:
        self.edges.pop(peer, None)
        if self._bounds is not None:
            self._bounds.forget(peer)

    def pull(self, x: Tensor, part: float, iteration: int, out: Tensor) -> None:
        """See `thinwire_proto.gossip.pull`. The same edges give the same bits, whatever their order in memory."""
        copies = [edge.theirs.flat for _, edge in sorted(self.edges.items()) if edge.knows_peer(iteration)]
        bounds = self._bounds
        pull(x, copies if bounds is None else [bounds.clipped_copy(x, copy) for copy in copies], part, out)

    def mix(self, x: Tensor, turns: Iterable[Turn], weight: Callable[[Turn], float]) -> int:
        """x ← x + Σ γ·w·(theirs − own) over these turns, in place. Returns the number of turns that were mixed. Raises
        PayloadError for a peer that cannot be read, or is too far away (see `MixBounds`).

        x: float32 [layout.parameters]. weight: of a turn's edge, in the iteration of the turn; 0 if the turn is void.
        Both ends compute the same products with opposite signs.
        """
        mixed = 0
        for turn in turns:
            factor, edge, when = self._gamma * weight(turn), self.edges[turn.peer], (turn.topology, turn.iteration)
            difference = edge.difference(when)
            if difference is not None and factor:
                if self._bounds is not None:
                    self._bounds.clip_(turn.peer, difference)
                x.add_(difference.mul_(factor))
                mixed += 1
        return mixed
