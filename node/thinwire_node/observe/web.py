"""The node's HTTP port: health and metrics. Imported only if somebody asks for it: a node without metrics neither
listens nor loads Starlette, uvicorn and prometheus_client."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from thinwire_common.http import SAFETY, HttpServer, bind
from thinwire_common.metrics import CONTENT_TYPE
from thinwire_node.observe.report import TAKES_PART, Report

CONNECTIONS_MAX = 16
"""A scraper needs one at a time."""
ADVICE = "give another with --metrics"


class Web:
    """`port`: 0 for a free one. metrics: the text of /metrics. report: how the node is. Both are called on the event
    loop. Raises ConfigError if it cannot listen there."""

    def __init__(self, host: str, port: int, metrics: Callable[[], bytes], report: Callable[[], Report]) -> None:
        self._metrics = metrics
        self._report = report
        routes = [
            Route("/metrics", self._metrics_page),
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/healthz", self._livez),  # its first name, which monitoring may know
        ]
        self._server = HttpServer(bind(host, port, ADVICE), routes, CONNECTIONS_MAX)
        self.address = f"http://{host}:{self._server.port}"

    def start(self) -> None:
        self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _metrics_page(self, request: Request) -> Response:
        return Response(self._metrics(), headers=SAFETY, media_type=CONTENT_TYPE)

    async def _livez(self, request: Request) -> Response:
        """200 as long as the event loop runs: the answer itself is the proof. Waiting is healthy."""
        return self._health(200)

    async def _readyz(self, request: Request) -> Response:
        """200 while the node takes part in rounds, 503 before and after."""
        return self._health(200 if self._report().state in TAKES_PART else 503)

    def _health(self, code: int) -> Response:
        report = self._report()
        return JSONResponse({"state": report.state, "words": report.words}, code, SAFETY)
