"""The port to the lines between a node and its peers. `thinwire_node.gossip.lines` implements `Lines`, and
`GossipTraining` implements `Listener`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from thinwire_node.gossip.port import PeerPlace
from thinwire_proto.gossip.message import Message

Relay = Callable[[AsyncIterator[Any]], AsyncGenerator[Any, None]]
"""Hands parcels to the relay, and yields those that it hands on to this node; see `GossipExchange.relay`."""


class Listener(Protocol):
    """Learns what happens on the lines, in their order, on the event loop. peer: a member number."""

    def received(self, peer: int, message: Message) -> None:
        """A message of a peer, whose signature is checked. Raises PayloadError if the peer cannot have sent it, or if
        it is one too many; the line is then lost."""

    def confirmed(self, peer: int, sequence: int) -> None:
        """The peer has all messages up to this one on disk. Raises PayloadError if it cannot have them."""

    def present(self, peer: int) -> None:
        """The line holds, for the first time or again: send again what is not confirmed."""

    def absent(self, peer: int, why: str) -> None:
        """The line is lost."""

    def received_from(self, peer: int) -> int:
        """The peer's last message that is on disk."""


class Lines(Protocol):
    """The lines of a node. peer: a member number."""

    @property
    def present(self) -> tuple[int, ...]:
        """Peers that are there."""

    @property
    def direct(self) -> tuple[int, ...]:
        """Peers to which there is a direct line."""

    @property
    def listens_at(self) -> str:
        """HOST:PORT, or :PORT, at which peers reach this node; empty if it does not listen."""

    def assign(self, peers: Mapping[int, PeerPlace]) -> None:
        """Have lines to these peers, and to no others."""

    def send(self, peer: int, message: Message) -> None:
        """Queue a message. Nothing is sent to a peer that is absent."""

    def confirm(self, peer: int) -> None:
        """Tell a peer what is on disk."""

    async def run(self, relay: Relay) -> None:
        """Have the lines through a relay until it ends. Raises what it raises."""

    async def close(self) -> None:
        """End all lines, and listen no more."""


MakeLines = Callable[[Listener], Lines]
