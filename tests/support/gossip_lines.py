"""Lines between nodes of one process: what one sends, the other gets, in order, until one of them is closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thinwire_node.gossip.port import Listener, PeerPlace, Relay
from thinwire_proto.gossip.message import Message
from thinwire_proto.identity.keys import PublicKey, SecretKey

KEYS = [SecretKey(bytes([number + 1] * 32)) for number in range(8)]
"""Of the members of a test."""


@dataclass
class Hub:
    """lines: the newest of each member, by its key. sent: all messages, with those that are sent again."""

    lines: dict[PublicKey, HubLines] = field(default_factory=dict)
    sent: int = 0


class HubLines:
    """An implementation of `thinwire_node.gossip.port.Lines`. key: of this node. A peer does not learn that
    this end is closed, as that of a machine that crashed does not."""

    def __init__(self, hub: Hub, key: PublicKey, listener: Listener) -> None:
        self.peers: dict[int, PublicKey] = {}
        self.direct: tuple[int, ...] = ()
        self.listens_at = ""
        self.listener = listener
        self._hub = hub
        self._key = key
        hub.lines[key] = self

    @property
    def present(self) -> tuple[int, ...]:
        return tuple(peer for peer in self.peers if self._other(peer) is not None)

    def assign(self, peers: Mapping[int, PeerPlace]) -> None:
        new = peers.keys() - self.peers.keys()
        self.peers = {peer: place.key for peer, place in peers.items()}
        for peer in new:
            if (other := self._other(peer)) is not None:
                self.listener.present(peer)
                other.listener.present(other.number_of(self._key))

    def number_of(self, key: PublicKey) -> int:
        return next(peer for peer, known in self.peers.items() if known == key)

    def send(self, peer: int, message: Message) -> None:
        self._hub.sent += 1
        if (other := self._other(peer)) is not None:
            other.listener.received(other.number_of(self._key), message)

    def confirm(self, peer: int) -> None:
        if (other := self._other(peer)) is not None:
            other.listener.confirmed(other.number_of(self._key), self.listener.received_from(peer))

    async def run(self, relay: Relay) -> None:
        raise AssertionError("these lines need no relay")

    async def close(self) -> None:
        if self._hub.lines.get(self._key) is self:
            del self._hub.lines[self._key]

    def _other(self, peer: int) -> HubLines | None:
        """The lines of a peer, if it has one to this node."""
        other = self._hub.lines.get(self.peers[peer]) if peer in self.peers else None
        return other if other is not None and self._key in other.peers.values() else None
