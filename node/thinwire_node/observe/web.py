"""The node's HTTP server for health and metrics.

Imported only with --metrics. A node without metrics does not listen and does not load Starlette, uvicorn and
prometheus_client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from thinwire_common.http import SAFETY, HttpServer, bind
from thinwire_common.metrics import CONTENT_TYPE
from thinwire_common.reach.hosts import is_loopback
from thinwire_node.observe.metrics_certificate import metrics_tls
from thinwire_node.report import TAKES_PART, Report
from thinwire_proto.errors import UsageError

CONNECTIONS_MAX = 16
"""A scraper needs one connection at a time."""
ADVICE = "give another port with --metrics"


class MetricsServer:
    """The HTTP server of one node. It is reachable from other machines only with `tls_folder`; see `metrics_tls`.

    port: 0 for any free port. metrics: returns the body of /metrics. report: returns the current report. Both run on
    the event loop. Raises ConfigError if the server cannot listen on the port."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Callable[[], bytes],
        report: Callable[[], Report],
        tls_folder: Path | None = None,
    ) -> None:
        self._metrics = metrics
        self._report = report
        routes = [
            Route("/metrics", self._metrics_page),
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
        ]
        if tls_folder is None and not is_loopback(host):
            raise UsageError(
                f"--metrics {host}:{port} would be open to others without encryption: use 127.0.0.1:{port}, or give "
                "--metrics-tls DIR, and the certificate from that folder to your scraper"
            )
        tls = None if tls_folder is None else metrics_tls(tls_folder)
        self._server = HttpServer(bind(host, port, ADVICE), routes, CONNECTIONS_MAX, tls)
        self.address = f"{self._server.scheme}://{host}:{self._server.port}"

    def start(self) -> None:
        self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _metrics_page(self, request: Request) -> Response:
        return Response(self._metrics(), headers=SAFETY, media_type=CONTENT_TYPE)

    async def _livez(self, request: Request) -> Response:
        """200 while the event loop runs, which the response itself proves. Waiting counts as healthy."""
        return self._health(200)

    async def _readyz(self, request: Request) -> Response:
        """200 while the node takes part in rounds, 503 before and after."""
        return self._health(200 if self._report().state in TAKES_PART else 503)

    def _health(self, code: int) -> Response:
        report = self._report()
        return JSONResponse({"state": report.state, "words": report.words}, code, SAFETY)
