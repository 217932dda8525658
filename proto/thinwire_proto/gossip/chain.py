"""The chain of hashes of what a node has mixed: its head stands in each report, and so in the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

import msgpack

from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.peer_wire import message_hash

GENESIS = hashlib.sha256(b"thinwire chain 1").digest()
"""The head of a chain in which nothing was mixed."""
OWN, THEIRS = 0, 1
"""Whose message of a turn it is."""


class MixChain:
    """The head, and the hashes of messages that are not mixed yet."""

    def __init__(self) -> None:
        self.head = GENESIS
        self._hashes: dict[Turn, list[bytes]] = {}  # of this node's message, and of the peer's

    def note(self, turn: Turn, whose: int, message: Message) -> None:
        """A message of a turn is there. whose: OWN or THEIRS."""
        hashes = self._hashes.setdefault(turn, [b"", b""])
        hashes[whose] = hashes[whose] or message_hash(message)

    def extend(self, turn: Turn) -> None:
        """The turn is mixed. Older turns with the same peer will not be."""
        place = msgpack.packb(turn.plain())
        self.head = hashlib.sha256(b"".join([self.head, place, *self._hashes[turn]])).digest()
        self._hashes = {
            other: hashes for other, hashes in self._hashes.items() if other.peer != turn.peer or other > turn
        }

    def forget(self, peer: int) -> None:
        """The edge with this peer has ended."""
        self._hashes = {turn: hashes for turn, hashes in self._hashes.items() if turn.peer != peer}

    def keep(self, turns: Collection[Turn], iteration: int) -> None:
        """Only these, and those of later iterations, may still be mixed."""
        self._hashes = {
            turn: hashes for turn, hashes in self._hashes.items() if turn in turns or turn.iteration > iteration
        }

    def plain(self) -> list[Any]:
        """The hashes as lists of numbers and bytes."""
        return [[*turn.plain(), *hashes] for turn, hashes in sorted(self._hashes.items())]

    def load(self, head: bytes, plain: Iterable[Any]) -> None:
        """Continue from a head and what `plain` returned."""
        self.head = head
        self._hashes = {Turn(*entry[:3]): list(entry[3:]) for entry in plain}
