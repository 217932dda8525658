"""The gRPC server: the swarm's service, the standard health service, and reflection for tools such as grpcurl."""

from __future__ import annotations

from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from thinwire_coordinator.access.door import Door
from thinwire_coordinator.rpc.service import Service, add_service
from thinwire_coordinator.rpc.tough_server import tough_server
from thinwire_coordinator.rpc.traffic import SERVICE, CountMessages
from thinwire_coordinator.swarm.swarm import Swarm
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX

CALLS_A_NODE = 8
OPTIONS = (
    ("grpc.so_reuseport", 0),  # otherwise two coordinators could share a port unnoticed
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # HTTP/2 pings are the heartbeat
    ("grpc.keepalive_time_ms", round(limits.HEARTBEAT_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(limits.HEARTBEAT_ANSWER_S * 1000)),
    ("grpc.http2.ping_timeout_ms", round(limits.HEARTBEAT_ANSWER_S * 1000)),  # gRPC's default is a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", round(limits.HEARTBEAT_LEAST_S * 1000)),
)


class Server:
    """Serves from `start` to `stop`. The health service reports SERVING in between, and NOT_SERVING afterwards."""

    def __init__(self, swarm: Swarm, door: Door) -> None:
        self._server = tough_server(
            options=OPTIONS,
            maximum_concurrent_rpcs=CALLS_A_NODE * swarm.view.contract.round.nodes_max,
            interceptors=[CountMessages(swarm.view.counts.traffic)],
        )
        self._health = health.aio.HealthServicer()
        add_service(Service(swarm, door), self._server)
        add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def start(self, listen: str) -> int:
        """Listen on `listen` (HOST:PORT; port 0 picks a free one). Return the port. Raises ConfigError."""
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigError(
                f"cannot listen on {listen}: the port is in use, or this machine does not have the address; "
                "give another with --listen HOST:PORT"
            )
        await self._health.set(SERVICE, HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """Stop serving. Calls in progress may continue for `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
