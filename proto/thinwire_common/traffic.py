"""Counts the traffic between a coordinator and its nodes (docs/watching.md).

Payload is counted by kind of message where gRPC serializes or parses it. The kernel counts the bytes on the wire.
"""

from __future__ import annotations

from thinwire_common.tcp import Connections, End, WireCount

KINDS_OF_CALL = {
    "Contribute": ("contribution", "receipt"),
    "AskReceipt": ("receipt", "receipt"),
    "Updates": ("update", "update"),
    "Attend": ("announcement", "announcement"),
    "Snapshot": ("snapshot", "snapshot"),
    "Corpus": ("corpus", "corpus"),
    "Blob": ("blob", "blob"),
    "Evaluated": ("evaluated", "evaluated"),
    "Beat": ("beat", "beat"),
    "Relay": ("parcel", "parcel"),
    "Exchange": ("parcel", "parcel"),
    "Deposit": ("deposit", "deposit"),
    "Probe": ("probe", "probe"),
    "Hello": ("hello", "hello"),
    "Join": ("join", "join"),
    "Status": ("status", "status"),
}
"""For each call, the kinds of its request and its response."""
KINDS = (*dict.fromkeys(kind for kinds in KINDS_OF_CALL.values() for kind in kinds), "other")


def kinds_of(method: str) -> tuple[str, str]:
    """The kinds of a call's request and response, by its full name (/package.Service/Call)."""
    return KINDS_OF_CALL.get(method.rpartition("/")[2], ("other", "other"))


class Payload:
    """Messages in one direction, by kind."""

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(KINDS, 0)
        self.messages = dict.fromkeys(KINDS, 0)

    def add(self, kind: str, size: int) -> None:
        self.bytes[kind] += size
        self.messages[kind] += 1

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


PEER_LINES = ("direct", "relay")
"""The two kinds of lines between the nodes of a gossip run."""


class Traffic:
    """All messages of this process since it started, and its connections once there is a port.

    peers_sent, peers_received: bytes of parcels of other nodes, by kind of line."""

    def __init__(self) -> None:
        self.peers_sent = dict.fromkeys(PEER_LINES, 0)
        self.peers_received = dict.fromkeys(PEER_LINES, 0)
        self.sent = Payload()
        self.received = Payload()
        self.connections: Connections | None = None

    def listening_at(self, port: int) -> None:
        """Count connections to this port of this process from now on."""
        self.connections = Connections(port, End.OURS)

    def connecting_to(self, port: int) -> None:
        """Count connections to this port of another process from now on."""
        if self.connections is None or self.connections.port != port:
            self.connections = Connections(port, End.THEIRS)

    def look(self) -> None:
        """Read the kernel's counters of the connections."""
        if self.connections is not None:
            self.connections.look()

    @property
    def wire(self) -> WireCount | None:
        """Bytes on the wire; None without a connection, or if the kernel does not count."""
        count = self.connections.wire if self.connections is not None else WireCount()
        return count if count.sent or count.received else None
