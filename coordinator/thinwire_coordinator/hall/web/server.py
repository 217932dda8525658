"""The coordinator's HTTP server for health, metrics and the page. All of its routes are read-only.

The port opens before the ledger is replayed, so that health checks report the coordinator as alive but not ready.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute

from thinwire_common.http import HttpServer, bind
from thinwire_common.tls import ServerTls
from thinwire_coordinator.hall.access.addresses import group_of
from thinwire_coordinator.hall.access.admission import page_connections
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_coordinator.hall.observe.readiness import Readiness

ADVICE = "choose another address with --http HOST:PORT, or use --http off"


class WebServer:
    """The HTTP server at `listen` (HOST:PORT). It speaks HTTPS, except on loopback and to a proxy in front.

    If that port is taken: uses another one if `may_move`, otherwise raises ConfigError.
    """

    def __init__(
        self, listen: str, transport: Transport, readiness: Readiness, routes: Sequence[BaseRoute], *, may_move: bool
    ) -> None:
        host, _, port = listen.rpartition(":")
        certificate = transport.page_certificate(listen)
        tls = None if certificate is None else ServerTls(certificate.chain, certificate.key)
        if tls is not None and transport.rotation is not None:
            transport.rotation.watchers.append(lambda new: tls.replace(new.chain, new.key))
        may_connect = transport.may_connect if tls is None else lambda _: True
        bound = bind(host, int(port), ADVICE, may_move=may_move)
        every = [*readiness.routes, *routes]
        self._server = HttpServer(
            bound,
            every,
            page_connections(),
            tls,
            may_connect,
            transport.client_of,
            behind_proxy=transport.behind_proxy,
            network_of=group_of,
        )
        self.address = f"{self._server.scheme}://{host}:{self._server.port}"

    def start(self) -> None:
        self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
