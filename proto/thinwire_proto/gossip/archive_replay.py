"""Repeats a node's copies and its chain from its archive of messages, without a gradient and without a network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire_proto.errors import ConfigError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.archive import OWN, THEIRS, ArchivedMessage, Entry
from thinwire_proto.gossip.chain import MixChain
from thinwire_proto.gossip.codec import make_codec
from thinwire_proto.gossip.copies import SKIP, SNAPSHOT, UNACKNOWLEDGED_MAX, Message
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.member import FIRST_TOPOLOGY
from thinwire_proto.gossip.public_copy import PublicCopy
from thinwire_proto.gossip.unread import first_sequence, since_of


class MixedTurn(NamedTuple):
    """A turn as one end has mixed it: both member numbers, and the hashes of both messages."""

    topology: int
    iteration: int
    member: int
    peer: int
    own: bytes
    theirs: bytes

    def of_the_peer(self) -> MixedTurn:
        """The same, as the other end must have mixed it."""
        return MixedTurn(self.topology, self.iteration, self.peer, self.member, self.theirs, self.own)


@dataclass
class _Direction:
    """One copy of an edge. wrong: why it is not what the sender has; empty if it is. early: by number, messages before
    their order."""

    copy: PublicCopy
    wrong: str = ""
    early: dict[int, Message] = field(default_factory=dict)


class ArchiveReplay:
    """first: the parameters that all nodes begin with, float32 [layout.parameters]."""

    def __init__(self, layout: TileLayout, first: Tensor) -> None:
        self._layout = layout
        self._first = first
        self._chain = MixChain()
        self._since: dict[int, int] = {}  # by peer, the topology in which its edge began
        self._edges: dict[tuple[int, int], _Direction] = {}  # by peer and direction
        self._wrong: dict[Turn, str] = {}  # turns that the node must not have mixed, and why
        self.messages: Counter[int] = Counter()
        """Messages that were taken, by direction."""
        self.mixed: set[MixedTurn] = set()
        self.numbers: list[int] = []
        """The node's member numbers, one after the other."""
        self.differences = 0
        """Messages of peers after which a copy was not what the peer says."""

    @property
    def head(self) -> bytes:
        """Of the chain of what is mixed so far, 32 bytes."""
        return self._chain.head

    def take(self, entry: Entry) -> bool:
        """Take the next entry. Returns whether a turn was mixed, so that the head is another.

        Raises PayloadError if the node cannot have done that."""
        if isinstance(entry, Turn):
            self._mix(entry)
            return True
        if isinstance(entry, int):
            if entry not in self.numbers[-1:]:
                self.numbers.append(entry)
        else:
            self._take_message(entry)
        return False

    def _mix(self, turn: Turn) -> None:
        hashes = self._chain.hashes(turn)
        if hashes is None:
            raise PayloadError(f"{_named(turn)} is mixed without both of its messages")
        if turn in self._wrong:
            raise PayloadError(f"{_named(turn)} is mixed, although {self._wrong[turn]}")
        if not self.numbers:
            raise PayloadError(f"{_named(turn)} is mixed by a node without a number")
        self.mixed.add(MixedTurn(turn.topology, turn.iteration, self.numbers[-1], turn.peer, *hashes))
        self._chain.extend(turn)

    def _take_message(self, entry: ArchivedMessage) -> None:
        peer, message = entry.peer, entry.message
        since = since_of(message.sequence)
        known = self._since.get(peer, -1)
        if since < known:
            return  # of an edge that has ended
        if since > known:
            self._begin(peer, since)
        direction = self._edges[peer, entry.whose]
        if not direction.copy.sequence < message.sequence <= direction.copy.sequence + UNACKNOWLEDGED_MAX:
            return  # it came again after a restart, or the node has refused it
        direction.early.setdefault(message.sequence, message)
        self._chain.note(Turn(*message.when, peer), entry.whose, message)
        while (following := direction.early.pop(direction.copy.sequence + 1, None)) is not None:
            self.messages[entry.whose] += 1
            self._advance(direction, following)
            if direction.wrong:
                if entry.whose == OWN:
                    raise PayloadError(f"member {peer}: of its own messages, {direction.wrong}")
                self._wrong[Turn(*following.when, peer)] = direction.wrong

    def _begin(self, peer: int, since: int) -> None:
        self._since[peer] = since
        self._chain.forget(peer)
        self._wrong = {turn: why for turn, why in self._wrong.items() if turn.peer != peer}
        start = self._first if since == FIRST_TOPOLOGY else torch.zeros(self._layout.parameters)
        for whose in (OWN, THEIRS):
            self._edges[peer, whose] = _Direction(PublicCopy(self._layout, start))
            self._edges[peer, whose].copy.sequence = first_sequence(since)

    def _advance(self, direction: _Direction, message: Message) -> None:
        is_whole, copy = message.codec == SNAPSHOT, direction.copy
        if message.codec == SKIP:
            copy.skip()
            return
        try:
            step = make_codec("dense" if is_whole else message.codec, self._layout).decode(
                message.body, copy.flat.device
            )
        except (ConfigError, PayloadError) as error:
            direction.wrong = f"message {message.sequence} cannot be read: {error}"
            copy.sequence += 1
            return
        copy.advance(step, is_whole=is_whole)
        if copy.fingerprint() != message.fingerprint:
            self.differences += 1
            direction.wrong = f"the copy after message {message.sequence} is another one than the message says"
        elif is_whole:
            direction.wrong = ""


def _named(turn: Turn) -> str:
    return f"the turn with member {turn.peer} in iteration {turn.iteration} of topology {turn.topology}"
