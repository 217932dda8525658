"""The port to the owner of lines: what it learns of them, and the relay that it gives them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Protocol

from thinwire_proto.gossip.copies import Message

Relay = Callable[[AsyncIterator[Any]], AsyncGenerator[Any, None]]
"""Hands parcels to the relay, and yields those that it hands on to this node."""


class Listener(Protocol):
    """Learns what happens on the lines, in their order. Members are named by their numbers."""

    def received(self, peer: int, message: Message) -> None:
        """A message came. Raises PayloadError if the peer cannot have sent it; the line is then lost."""

    def confirmed(self, peer: int, sequence: int) -> None:
        """The peer has saved all messages up to this one. Raises PayloadError if it cannot have them."""

    def present(self, peer: int) -> None:
        """The line holds: send again what is not confirmed."""

    def absent(self, peer: int, why: str) -> None:
        """The line is lost."""

    def received_from(self, peer: int) -> int:
        """The number of the last message to confirm to a peer."""
