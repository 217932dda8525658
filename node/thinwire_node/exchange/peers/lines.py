"""All lines of one node: which peers are there, what waits for them, and what came from them.

A line is lost when the relay says so, or its stream ends. Then its peer is absent, and the line is begun again after
PEER_RETRY_S, or as soon as the peer begins it. Both ends then send again what is not confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from thinwire_common.logs import tell
from thinwire_node.exchange.peers.framing import Framing
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.copies import Message
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.limits import HEARTBEAT_S, PEER_RETRY_S
from thinwire_proto.wire import service_pb2 as pb

log = logging.getLogger("thinwire.node")

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


@dataclass
class _Line:
    key: PublicKey
    framing: Framing
    is_present: bool = False
    waiting: deque[Message] = field(default_factory=deque)  # a member has few messages that are not confirmed
    parcels: deque[pb.Parcel] = field(default_factory=deque)  # of the message that is being sent
    has_word: bool = False  # a confirmation is due
    begins: bool = True  # the next parcel begins the line
    retry: asyncio.TimerHandle | None = None


class PeerLines:
    """The lines to the peers that `assign` names, through the relay.

    key: this node's. bytes_max: of a body, see `peer_wire.body_bytes_max`."""

    def __init__(self, key: SecretKey, contract_hash: bytes, bytes_max: int, listener: Listener) -> None:
        self._key = key
        self._contract_hash = contract_hash
        self._bytes_max = bytes_max
        self._listener = listener
        self._lines: dict[int, _Line] = {}
        self._by_node: dict[bytes, int] = {}
        self._changed = asyncio.Event()

    @property
    def present(self) -> tuple[int, ...]:
        """Peers that are there."""
        return tuple(sorted(peer for peer, line in self._lines.items() if line.is_present))

    def assign(self, peers: Mapping[int, PublicKey]) -> None:
        """Have lines to these peers, and to no others."""
        for peer in [peer for peer, line in self._lines.items() if peers.get(peer) != line.key]:
            self._end(self._lines.pop(peer))
        for peer, key in peers.items():
            if peer not in self._lines:
                self._lines[peer] = _Line(key, Framing(self._key, key, self._contract_hash, self._bytes_max))
        self._by_node = {bytes.fromhex(line.key.node_id): peer for peer, line in self._lines.items()}
        self._changed.set()

    def send(self, peer: int, message: Message) -> None:
        """Queue a message. While the peer is absent nothing is sent; `present` asks for it again."""
        if peer in self._lines and self._lines[peer].is_present:
            self._lines[peer].waiting.append(message)
            self._changed.set()

    def confirm(self, peer: int) -> None:
        """Tell a peer what is saved."""
        if peer in self._lines:
            self._lines[peer].has_word = True
            self._changed.set()

    async def run(self, relay: Relay) -> None:
        """Have the lines through a relay until it ends. Raises what it raises, and all peers are absent then."""
        for line in self._lines.values():
            line.begins = True
        try:
            async with contextlib.aclosing(relay(self._outgoing())) as parcels:
                async for parcel in parcels:
                    self._take(parcel)
        finally:
            for peer, line in self._lines.items():
                self._lose(peer, line, "the relay is away")

    def close(self) -> None:
        """End all lines."""
        self.assign({})

    # inside

    async def _outgoing(self) -> AsyncIterator[pb.Parcel]:
        """The parcels to send: one of each line in turn, so that a large message holds no other up."""
        while True:
            self._changed.clear()
            sent = False
            for peer in list(self._lines):
                parcel = self._next(peer)
                if parcel is not None:
                    sent = True
                    yield parcel
            if not sent:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), HEARTBEAT_S)
                    continue
                yield pb.Parcel()  # keeps the stream alive

    def _next(self, peer: int) -> pb.Parcel | None:
        line = self._lines.get(peer)
        if line is None:
            return None
        parcel = None
        if line.begins or line.has_word:
            parcel = pb.Parcel(acknowledged=self._listener.received_from(peer), begins=line.begins)
            line.begins = line.has_word = False
        elif line.is_present:
            if not line.parcels and line.waiting:
                line.parcels.extend(line.framing.parcels(line.waiting.popleft()))
            parcel = line.parcels.popleft() if line.parcels else None
        if parcel is not None:
            parcel.node = bytes.fromhex(line.key.node_id)
        return parcel

    def _take(self, parcel: pb.Parcel) -> None:
        peer = self._by_node.get(parcel.node)
        if peer is None:
            return  # not a peer, or not yet: it begins its line again after a while
        line = self._lines[peer]
        if parcel.gone:
            self._lose(peer, line, clean_text(parcel.gone))
            return
        try:
            if parcel.begins:
                line.framing.forget()
                line.has_word = True  # it shows the peer that this end is there
                self._changed.set()
            if parcel.begins or not line.is_present:
                self._find(peer, line)
            message = line.framing.read(parcel)
            if parcel.HasField("acknowledged"):
                self._listener.confirmed(peer, parcel.acknowledged)
            if message is not None:
                self._listener.received(peer, message)
        except PayloadError as error:
            text = f"member {peer}: {error}; the line is begun again"
            tell(log, logging.WARNING, "node.peer_refused", text, member=peer, reason=str(error))
            self._lose(peer, line, str(error))

    def _find(self, peer: int, line: _Line) -> None:
        if line.retry is not None:
            line.retry.cancel()
            line.retry = None
        line.is_present = True
        line.waiting.clear()  # the listener sends again what is not confirmed
        line.parcels.clear()
        self._listener.present(peer)

    def _lose(self, peer: int, line: _Line, why: str) -> None:
        line.is_present = False
        line.waiting.clear()
        line.parcels.clear()
        line.framing.forget()
        if line.retry is None:
            line.retry = asyncio.get_running_loop().call_later(PEER_RETRY_S, self._begin_again, peer)
        self._listener.absent(peer, why)

    def _begin_again(self, peer: int) -> None:
        line = self._lines.get(peer)
        if line is not None:
            line.retry, line.begins = None, True
            self._changed.set()

    def _end(self, line: _Line) -> None:
        if line.retry is not None:
            line.retry.cancel()
