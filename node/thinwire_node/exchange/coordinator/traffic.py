"""Bytes between this node and the coordinator, counted at two layers (docs/watching.md).

Payload: each protobuf message where it is serialized or parsed, by its kind. Wire: what the kernel says of the
connections; looked at now and then, so that what passes in the last moment of a connection which breaks is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thinwire_node.observe.connections import WireCount, wire_counts

if TYPE_CHECKING:
    import grpc

KINDS = (
    "contribution",
    "receipt",
    "update",
    "announcement",
    "snapshot",
    "corpus",
    "probe",
    "join",
    "status",
    "other",
)
KINDS_OF_CALL = {
    "Join": ("join", "join"),
    "Attend": ("announcement", "announcement"),
    "Contribute": ("contribution", "receipt"),
    "AskReceipt": ("receipt", "receipt"),
    "Updates": ("update", "update"),
    "Snapshot": ("snapshot", "snapshot"),
    "Corpus": ("corpus", "corpus"),
    "Probe": ("probe", "probe"),
    "Status": ("status", "status"),
}
"""Of what is asked, and of what is answered; "other" for any other call."""

Serialize = Callable[[Any], bytes]
Parse = Callable[[bytes], Any]


class Payload:
    """Messages in one direction, by kind."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def add(self, kind: str, size: int) -> None:
        self.bytes[kind] += size
        self.messages[kind] += 1

    @property
    def total_bytes(self) -> int:
        return self.bytes.total()


class Traffic:
    """Of one node, over all its connections. `wire`: None where the kernel does not tell."""

    def __init__(self) -> None:
        self.sent = Payload()
        self.received = Payload()
        self._port: int | None = None
        self._ended = WireCount(0, 0)
        self._open: dict[int, WireCount] = {}

    def connecting_to(self, port: int) -> None:
        """From now on, connections to this port are the coordinator's."""
        self._port = port

    def look(self) -> None:
        """Ask the kernel how far the connections are."""
        if self._port is None:
            return
        now = wire_counts(self._port)
        for connection in self._open.keys() - now.keys():
            self._ended += self._open[connection]
        self._open = now

    @property
    def wire(self) -> WireCount | None:
        count = sum(self._open.values(), self._ended)
        return count if count.sent or count.received else None


class CountedChannel:
    """As much of a channel as a stub needs; messages are counted on their way through it."""

    def __init__(self, channel: grpc.aio.Channel, traffic: Traffic) -> None:
        self._channel = channel
        self._traffic = traffic

    def unary_unary(self, method: str, request_serializer: Serialize, response_deserializer: Parse, **more: Any) -> Any:
        counting = self._counting(method, request_serializer, response_deserializer)
        return self._channel.unary_unary(method, *counting, **more)

    def unary_stream(
        self, method: str, request_serializer: Serialize, response_deserializer: Parse, **more: Any
    ) -> Any:
        counting = self._counting(method, request_serializer, response_deserializer)
        return self._channel.unary_stream(method, *counting, **more)

    def stream_unary(
        self, method: str, request_serializer: Serialize, response_deserializer: Parse, **more: Any
    ) -> Any:
        counting = self._counting(method, request_serializer, response_deserializer)
        return self._channel.stream_unary(method, *counting, **more)

    def _counting(self, method: str, serialize: Serialize, parse: Parse) -> tuple[Serialize, Parse]:
        asked, answered = KINDS_OF_CALL.get(method.rpartition("/")[2], ("other", "other"))
        sent, received = self._traffic.sent, self._traffic.received

        def counted_serialize(message: Any) -> bytes:
            data = serialize(message)
            sent.add(asked, len(data))
            return data

        def counted_parse(data: bytes) -> Any:
            received.add(answered, len(data))
            return parse(data)

        return counted_serialize, counted_parse
