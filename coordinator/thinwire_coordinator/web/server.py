"""The HTTP port: a server in the coordinator's own event loop. What it serves stands elsewhere, and is read-only.

It listens before the ledger is replayed, so that whoever asks is told the truth: alive, and not ready yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from thinwire_coordinator.swarm.view import SwarmView
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError

log = logging.getLogger("thinwire.coordinator")


class Readiness:
    """Whether nodes can be served. `text`: what happens before that. `swarm`: there when it has begun to be served.
    `ending`: it is not served any more."""

    def __init__(self) -> None:
        self.text = "starting"
        self.swarm: SwarmView | None = None
        self.ending = False

    @property
    def failed(self) -> bool:
        return self.swarm is not None and self.swarm.failed

    @property
    def ready(self) -> bool:
        return self.swarm is not None and not (self.ending or self.failed)

    @property
    def state(self) -> str:
        """In words."""
        if self.swarm is None:
            return self.text
        if self.failed:
            return "a round could not be sealed"
        return "ending" if self.ending else self.swarm.condition

    async def healthz(self, request: Request) -> Response:
        """200 while nodes can join, 503 before and after."""
        return JSONResponse({"ready": self.ready, "state": self.state}, status_code=200 if self.ready else 503)


TICK_S = 1.0
TENTHS = 10


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """As uvicorn's own, which wakes ten times a second, at the cost of one: it keeps the date for the headers."""
        tenths = 0
        while not await self.on_tick(tenths):
            tenths += TENTHS
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), TICK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the coordinator's."""
        yield


class Web:
    """`listen`: HOST:PORT. Raises ConfigError if it cannot listen there; with `may_move` it takes another port then."""

    def __init__(self, listen: str, readiness: Readiness, routes: Sequence[BaseRoute], *, may_move: bool) -> None:
        host, _, port = listen.rpartition(":")
        self._socket = _bound(host.strip("[]"), int(port), listen, may_move)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # each connection inherits it
            silent_ms = round(limits.BROWSER_SILENT_S * 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_ms)
        app = Starlette(routes=[Route("/healthz", readiness.healthz), *routes])
        config = uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            lifespan="off",
            http="h11",
            ws="none",
            timeout_graceful_shutdown=math.ceil(limits.HTTP_SHUTDOWN_S),  # uvicorn takes whole seconds
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None
        self.address = f"http://{host}:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        self._server.end()
        if self._serving is not None:
            await self._serving
        self._socket.close()


def _bound(host: str, port: int, listen: str, may_move: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            if not may_move or error.errno != errno.EADDRINUSE:
                raise
            return socket.create_server((host, 0), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {listen}: {error.strerror}; give another with --http HOST:PORT, or --http off"
        ) from None
