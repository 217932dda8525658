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

from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.name_lookup import look_up
from thinwire_common.serving.path_safe_server import path_safe_server
from thinwire_coordinator.hall.access.admission import AdmissionRules
from thinwire_coordinator.hall.access.bounds import Bounds
from thinwire_coordinator.hall.access.door import Door
from thinwire_coordinator.hall.access.refusals import Denied
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_coordinator.hall.events import CallDenied
from thinwire_coordinator.hall.rpc.calls import peer_behind
from thinwire_coordinator.hall.rpc.guard import Guard
from thinwire_coordinator.hall.rpc.secure_port import PlainPeers, credentials
from thinwire_coordinator.hall.rpc.server_options import server_options
from thinwire_coordinator.hall.rpc.service import Service, add_service
from thinwire_coordinator.hall.rpc.traffic import SERVICE, CountMessages
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.whole_run import WholeRun
from thinwire_proto.errors import ConfigError


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
        whole_run: Callable[[], WholeRun | None] = lambda: None,
    ) -> None:
        self._transport = transport
        bounds = bounds or Bounds(run.view.contract.round.nodes_max)
        rules = AdmissionRules(bounds)

        def node_of(secret: str) -> str | None:
            member = run.members.of_secret(secret)
            return member.node_id if member is not None else None

        def told(denied: Denied) -> None:
            run.events.tell(CallDenied(denied.reason))

        peer = partial(peer_behind, transport)
        guard = Guard(rules, node_of, lambda: run.view.now, told, peer=peer, was_replaced=run.members.was_replaced)
        counting = CountMessages(run.view.counts.traffic)
        self._server = path_safe_server(
            options=server_options(bounds),
            maximum_concurrent_rpcs=bounds.calls_max,
            interceptors=[PlainPeers(transport), guard, counting],  # the guard comes before all that costs something
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
        return self._server.add_secure_port(listen, credentials(certificates))

    async def stop(self, grace_s: float) -> None:
        """Stop serving. Calls in progress may continue for `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
