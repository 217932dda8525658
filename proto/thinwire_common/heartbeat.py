"""The heartbeat of a connection, HTTP/2 pings: the options of gRPC for both its ends."""

from __future__ import annotations

from thinwire_proto import limits


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


CLIENT_OPTIONS = (
    ("grpc.keepalive_time_ms", _ms(limits.HEARTBEAT_S)),
    ("grpc.keepalive_timeout_ms", _ms(limits.HEARTBEAT_ANSWER_S)),
    ("grpc.http2.ping_timeout_ms", _ms(limits.PING_ANSWER_S)),  # gRPC's default is one minute
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS = (*CLIENT_OPTIONS, ("grpc.http2.min_ping_interval_without_data_ms", _ms(limits.HEARTBEAT_LEAST_S)))
