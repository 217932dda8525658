"""The gRPC port: the swarm's service, and beside it what tools expect of any (health, and reflection for grpcurl)."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from thinwire_coordinator.rpc.service import Service, add_service
from thinwire_coordinator.rpc.traffic import SERVICE, CountMessages
from thinwire_coordinator.swarm.swarm import Swarm
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX

CALLS_A_NODE = 8
OPTIONS = (
    ("grpc.so_reuseport", 0),  # or two coordinators could share a port without noticing
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # HTTP/2 pings are the heartbeat
    ("grpc.keepalive_time_ms", round(limits.HEARTBEAT_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(limits.HEARTBEAT_ANSWER_S * 1000)),
    ("grpc.http2.ping_timeout_ms", round(limits.HEARTBEAT_ANSWER_S * 1000)),  # or gRPC waits a minute for the answer
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", round(limits.HEARTBEAT_LEAST_S * 1000)),
)


class Server:
    """Serves from `start` to `stop`; who asks for its health in between is told that it serves, and after that not."""

    def __init__(self, swarm: Swarm) -> None:
        self._server = grpc.aio.server(
            options=OPTIONS,
            maximum_concurrent_rpcs=CALLS_A_NODE * swarm.view.contract.round.nodes_max,
            interceptors=[CountMessages(swarm.view.counts.traffic)],
        )
        self._health = health.aio.HealthServicer()
        add_service(Service(swarm), self._server)
        add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def start(self, listen: str) -> int:
        """`listen`: HOST:PORT. Returns the port, which is another if that is 0. Raises ConfigError."""
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigError(
                f"cannot listen on {listen}: the port is in use, or the address is not of this machine; "
                "give another with --listen HOST:PORT"
            )
        await self._health.set(SERVICE, HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """Calls that run may go on for so long."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
