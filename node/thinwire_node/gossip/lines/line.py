"""The state of one line: which way it goes, what waits for the peer, and what has to be said to it.

A line has two ways, and may change between them at any time: a direct connection, and the relay. It sends on one of
them, the direct one if there is one, and takes what comes on either: messages are numbered, so none is taken twice.
After a change of the way, the owner sends again what is not confirmed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from thinwire_node.backoff import Backoff
from thinwire_node.gossip.lines.stream import Stream
from thinwire_node.report import short_name
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.peer_wire import check_header, header_of, message_of, statement_of
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.limits import PEER_RETRY_MAX_S
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import Assembly, split_for_upload


class Framing:
    """Messages of one line as parcels: split, signed, joined and checked. A message is taken only if its sender has
    signed it for this node and this contract, so nobody on the way can alter it.

    key: this node's. peer: the other end's. bytes_max: of a body, see `peer_wire.body_bytes_max`."""

    def __init__(self, key: SecretKey, peer: PublicKey, contract_hash: bytes, bytes_max: int) -> None:
        self._key = key
        self._peer = peer
        self._contract_hash = contract_hash
        self._bytes_max = bytes_max
        self._header: pb.PeerHeader | None = None
        self._assembly: Assembly | None = None

    def parcels(self, message: Message) -> Iterator[pb.Parcel]:
        """The parcels of a message, in order."""
        header: pb.PeerHeader | None = header_of(message)
        assert header is not None
        own = self._key.public.node_id
        header.signature = self._key.sign(statement_of(self._contract_hash, own, self._peer.node_id, message))
        for data in split_for_upload(message.body):
            yield pb.Parcel(header=header, data=data)
            header = None

    def read(self, parcel: pb.Parcel) -> Message | None:
        """Take a parcel. Returns the message that it completes.

        A message that begins ends an incomplete one, and what belongs to none is passed over: a relay drops parcels
        of a line that it cannot serve. Raises PayloadError for what the peer cannot have sent."""
        if parcel.HasField("header"):
            self.forget()
            check_header(parcel.header, self._bytes_max)
            self._header = parcel.header
            self._assembly = Assembly(parcel.header.body_bytes, self._bytes_max, "message of a peer")
        if self._assembly is None or self._header is None:
            return None
        if not parcel.HasField("header") and not parcel.data:
            return None  # a confirmation between two parts
        self._assembly.add(parcel.data)
        if not self._assembly.complete:
            return None
        header, message = self._header, message_of(self._header, self._assembly.whole())
        self.forget()
        statement = statement_of(self._contract_hash, self._peer.node_id, self._key.public.node_id, message)
        if not self._peer.verifies(header.signature, statement):
            raise PayloadError(
                f"message {message.sequence} is not signed by {self._peer.node_id[:8]} for this node and contract"
            )
        return message

    def forget(self) -> None:
        """Drop an incomplete message."""
        self._header = self._assembly = None


class Way(Enum):
    """The two ways of a line."""

    DIRECT = "direct"
    RELAY = "relay"


class Line:
    """key, address: of the peer; the address is empty if it does not listen."""

    def __init__(self, key: PublicKey, address: str, framings: Mapping[Way, Framing], backoff: Backoff) -> None:
        self.key = key
        self.name = short_name(key.node_id)
        """The peer, in texts for people."""
        self.address = address
        self.framings = framings
        self.is_present = False
        self.on_relay = False
        """Whether it goes through the relay while there is no direct connection."""
        self.stream: Stream | None = None
        self.without_stream = asyncio.Event()
        self.without_stream.set()
        self.dialling: asyncio.Task[None] | None = None
        self.is_relay_told = False
        """Whether the log knows that its messages use the relay, since the last direct connection."""
        self.timer: asyncio.TimerHandle | None = None
        """Begins the line on the relay, for the first time or again."""
        self.finding: asyncio.TimerHandle | None = None
        """Finds the line that the peer has begun too soon after the last time."""
        self.deaf_until = 0.0
        """When parcels of the peer that come through the relay are read again, after one that could not be."""
        self._free_at = 0.0  # when the peer may open the line next
        self._backoff = backoff
        self._found_at: float | None = None
        self._last_found_at = float("-inf")
        self._waiting: deque[Message] = deque()  # a member has few messages that are not confirmed
        self._parcels: deque[pb.Parcel] = deque()  # of the message that is being sent
        self._begins: set[Way] = set()  # the next parcel begins the line there
        self._words: set[Way] = set()  # a confirmation is due there

    @property
    def way(self) -> Way:
        """The way on which it sends."""
        return Way.RELAY if self.stream is None else Way.DIRECT

    # what goes out

    def put(self, message: Message) -> None:
        """Queue a message. Nothing is sent to a peer that is absent."""
        if self.is_present:
            self._waiting.append(message)

    def begin_on(self, way: Way) -> None:
        self._begins.add(way)

    def say_on(self, way: Way) -> None:
        """Confirm on this way what is saved."""
        self._words.add(way)

    def next_parcel(self, way: Way, received_from: Callable[[], int]) -> pb.Parcel | None:
        """The next parcel for this way; None if nothing waits. received_from: the last message to confirm."""
        if way in self._begins or way in self._words:
            parcel = pb.Parcel(acknowledged=received_from(), begins=way in self._begins)
            self._begins.discard(way)
            self._words.discard(way)
            return parcel
        if not self.is_present or way is not self.way:
            return None
        if not self._parcels and self._waiting:
            self._parcels.extend(self.framings[way].parcels(self._waiting.popleft()))
        return self._parcels.popleft() if self._parcels else None

    # its states

    def find(self, now: float) -> None:
        """The line holds on its way: for the first time, again, or on another way. The owner sends again what is not
        confirmed."""
        self.stop_timer()
        self.stop_finding()
        self.is_present, self._found_at, self._last_found_at = True, now, now
        self._waiting.clear()
        self._parcels.clear()

    def silence(self) -> None:
        """Send nothing until the line is found: the peer has begun it anew."""
        self.is_present = False
        self._waiting.clear()
        self._parcels.clear()

    def pause_before_find(self, now: float, least_s: float) -> float:
        """Seconds until the line may be found again: the times are at least `least_s` apart."""
        return max(0.0, self._last_found_at + least_s - now)

    def lose(self, now: float) -> float:
        """The line is lost. Returns the pause before it is begun again, in seconds."""
        self.stop_finding()
        self.silence()
        self._begins.clear()
        for framing in self.framings.values():
            framing.forget()
        if self._found_at is not None and now - self._found_at >= PEER_RETRY_MAX_S:
            self._backoff.reset()
        self._found_at = None
        pause_s = self._backoff.jittered_s()
        self._backoff.lengthen()
        return pause_s

    def connect(self, stream: Stream) -> None:
        """There is a direct connection. An older one ends."""
        if self.stream is not None:
            self.stream.close("a newer line of the same peer took its place")
        self.stream = stream
        self.without_stream.clear()
        self.framings[Way.DIRECT].forget()
        self._words.discard(Way.DIRECT)
        self._begins.discard(Way.RELAY)
        self.begin_on(Way.DIRECT)

    def pause_before_next(self, now: float, least_s: float) -> float:
        """Seconds until the peer may have another direct connection: they are at least `least_s` apart."""
        pause_s = max(0.0, self._free_at - now)
        self._free_at = now + pause_s + least_s
        return pause_s

    def disconnect(self) -> None:
        """The direct connection has ended."""
        self.stream = None
        self.without_stream.set()
        self._begins.discard(Way.DIRECT)
        self._words.discard(Way.DIRECT)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def stop_finding(self) -> None:
        if self.finding is not None:
            self.finding.cancel()
            self.finding = None

    def end(self) -> None:
        """There is no such line any more."""
        self.stop_timer()
        self.stop_finding()
        if self.dialling is not None:
            self.dialling.cancel()
        if self.stream is not None:
            self.stream.close("this node has no line to its peer any more")
