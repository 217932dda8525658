"""The coordinator's HTTP port: health, metrics and the page, all of them read-only.

It opens before the ledger is replayed, so that whoever asks gets an answer: alive, and not ready yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute

from thinwire_common.http import HttpServer, bind
from thinwire_coordinator.observe.readiness import Readiness
from thinwire_coordinator.web.live import STREAMS_MAX

CONNECTIONS_MAX = 4 * STREAMS_MAX
"""A browser that watches has one for its stream, and some more for what it asks."""
ADVICE = "give another with --http HOST:PORT, or --http off"


class Web:
    """`listen`: HOST:PORT. Raises ConfigError if it cannot listen there; with `may_move` it takes another port then."""

    def __init__(self, listen: str, readiness: Readiness, routes: Sequence[BaseRoute], *, may_move: bool) -> None:
        host, _, port = listen.rpartition(":")
        bound = bind(host, int(port), ADVICE, may_move=may_move)
        self._server = HttpServer(bound, [*readiness.routes, *routes], CONNECTIONS_MAX)
        self.address = f"http://{host}:{self._server.port}"

    def start(self) -> None:
        self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
