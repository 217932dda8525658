"""The coordinator's HTTP server for health, metrics and the page. All of its routes are read-only.

The port opens before the ledger is replayed, so that health checks report the coordinator as alive but not ready.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute

from thinwire_common.http import HttpServer, bind
from thinwire_coordinator.observe.readiness import Readiness
from thinwire_coordinator.web.live import STREAMS_MAX

CONNECTIONS_MAX = 4 * STREAMS_MAX
"""A browser uses one connection for its stream, and a few more for its requests."""
ADVICE = "choose another address with --http HOST:PORT, or use --http off"


class WebServer:
    """The HTTP server at `listen` (HOST:PORT).

    If that port is taken: uses another one if `may_move`, otherwise raises ConfigError.
    """

    def __init__(self, listen: str, readiness: Readiness, routes: Sequence[BaseRoute], *, may_move: bool) -> None:
        host, _, port = listen.rpartition(":")
        bound = bind(host, int(port), ADVICE, may_move=may_move)
        self._server = HttpServer(bound, [*readiness.routes, *routes], CONNECTIONS_MAX)
        self.address = f"http://{host}:{self._server.port}"

    def start(self) -> None:
        self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
