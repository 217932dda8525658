"""The gRPC server: the swarm's service, the standard health service, and reflection for tools such as grpcurl."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from thinwire_common import heartbeat
from thinwire_common.grpc_server import following, path_safe_server
from thinwire_common.reach.happy_eyeballs import look_up
from thinwire_common.reach.hosts import split_address
from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds
from thinwire_coordinator.hall.access.door import Denied, Door
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_coordinator.hall.events import Refused
from thinwire_coordinator.hall.rpc.calls import peer_of
from thinwire_coordinator.hall.rpc.guard import Guard
from thinwire_coordinator.hall.rpc.request_bounds import REQUEST_BYTES_MAX, SERVICE
from thinwire_coordinator.hall.rpc.service import Service, add_service
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.view import WholeRun
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError

METADATA_BYTES_MAX = 8 << 10
"""All headers of a call. Ours are a session's secret and what gRPC adds."""


async def check_listen(listen: str) -> None:
    """Raise ConfigError if a server could not listen on `listen` (HOST:PORT) now.

    gRPC opens a port at one address of the host at least, and only once the run is created and replayed.
    """
    host, port = split_address(listen)
    with suppress(OSError):
        for family, _, _, _, address in await look_up(host, port):
            with suppress(OSError):
                socket.create_server(address[:2], family=family).close()
                return
    raise cannot_listen(listen)


def cannot_listen(listen: str) -> ConfigError:
    return ConfigError(
        f"cannot listen on {listen}: the port is in use, or this machine does not have the address; "
        "give another with --listen HOST:PORT"
    )


class Server:
    """Serves from `start` to `stop`. The health service reports SERVING in between, and NOT_SERVING afterwards.

    make_service: each kind of exchange has its own `Service`. bounds: of what may arrive; by default those of the
    contract's `nodes_max`.
    whole_run: figures of all terms of the coordinator, once they are known.
    """

    def __init__(
        self,
        run: Run,
        make_service: Callable[..., Service],
        door: Door,
        transport: Transport,
        bounds: Bounds | None = None,
        whole_run: Callable[[str], WholeRun | None] = lambda asked: None,
    ) -> None:
        self._transport = transport
        bounds = bounds or Bounds(run.view.contract.round.nodes_max)
        rules = AdmissionRules(bounds)

        def node_of(secret: str) -> str | None:
            member = run.members.of_secret(secret)
            return member.node_id if member is not None else None

        def told(denied: Denied) -> None:
            run.events.tell(Refused("call", denied.reason))

        guard = Guard(
            rules,
            node_of,
            lambda: run.view.now,
            told,
            was_replaced=run.members.was_replaced,
            transport=transport,
            traffic=run.view.counts.traffic,
        )
        peer = partial(peer_of, transport=transport)
        self._server = path_safe_server(
            options=server_options(bounds),
            maximum_concurrent_rpcs=bounds.calls_max,
            interceptors=[guard],
        )
        self._health = health.aio.HealthServicer()
        add_service(make_service(run, door, rules=rules, peer=peer, whole_run=whole_run), self._server)
        add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def start(self, listen: str) -> int:
        """Listen on `listen` (HOST:PORT; port 0 picks a free one). Return the port. Raises ConfigError."""
        try:
            port = self._add_port(listen)
        except RuntimeError:
            port = 0
        if not port:
            raise cannot_listen(listen)
        await self._health.set(SERVICE, HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    def _add_port(self, listen: str) -> int:
        certificates = self._transport.certificates
        if certificates is None:
            return self._server.add_insecure_port(listen)
        return self._server.add_secure_port(listen, following(lambda: certificates.current))

    async def stop(self, grace_s: float) -> None:
        """Stop serving. Calls in progress may continue for `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def server_options(bounds: Bounds) -> tuple[tuple[str, int], ...]:
    """The bounds that gRPC itself enforces, before any of our code runs."""
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
