"""Options of the gRPC server: the bounds that gRPC itself enforces, before any of our code runs."""

from __future__ import annotations

from thinwire_common import heartbeat
from thinwire_coordinator.hall.access.bounds import Bounds
from thinwire_coordinator.hall.rpc.request_bounds import REQUEST_BYTES_MAX
from thinwire_proto import limits

METADATA_BYTES_MAX = 8 << 10
"""All headers of a call. Ours are a session's secret and what gRPC adds."""

Options = tuple[tuple[str, int], ...]


def server_options(bounds: Bounds) -> Options:
    return (
        ("grpc.so_reuseport", 0),  # otherwise two coordinators could share a port unnoticed
        # connections: how many, how long one may take to begin, and how long it may do nothing
        ("grpc.max_allowed_incoming_connections", bounds.connections_max),
        ("grpc.server_handshake_timeout_ms", _ms(limits.HANDSHAKE_S)),
        ("grpc.max_connection_idle_ms", _ms(limits.IDLE_CONNECTION_S)),
        ("grpc.max_connection_age_grace_ms", _ms(limits.SHUTDOWN_GRACE_S)),
        # calls of one connection, and their sizes
        ("grpc.max_concurrent_streams", bounds.streams_a_connection),
        ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        *heartbeat.SERVER_OPTIONS,
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
