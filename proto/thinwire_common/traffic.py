"""Payload between a coordinator and a node: the bytes of each message, counted by kind where gRPC serializes or parses
it (docs/watching.md), and the bytes on the wire, which the kernel counts."""

from __future__ import annotations

from thinwire_common.tcp import Connections, End, WireCount

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
"""The kind of a call's request, and of its response."""


def kinds_of(method: str) -> tuple[str, str]:
    """Of a call's request and response, by its full name (/package.Service/Call)."""
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


class Traffic:
    """All messages of this process since it started, and its connections once there is a port."""

    def __init__(self) -> None:
        self.sent = Payload()
        self.received = Payload()
        self.connections: Connections | None = None

    def listening_at(self, port: int) -> None:
        """From now on, connections to this port of this process are counted."""
        self.connections = Connections(port, End.OURS)

    def connecting_to(self, port: int) -> None:
        """From now on, connections to this port of another process are counted."""
        if self.connections is None or self.connections.port != port:
            self.connections = Connections(port, End.THEIRS)

    def look(self) -> None:
        """Ask the kernel how far the connections are."""
        if self.connections is not None:
            self.connections.look()

    @property
    def wire(self) -> WireCount | None:
        """None before there is a connection, and where the kernel does not count."""
        count = self.connections.wire if self.connections is not None else WireCount()
        return count if count.sent or count.received else None
