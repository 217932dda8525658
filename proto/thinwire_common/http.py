"""An HTTP server (Starlette on uvicorn) that runs in the event loop of its program. Bodies of requests are small.

An answer therefore proves that the event loop is alive. A client can neither fill the memory nor hold an idle
connection, because the head of a request has a size limit, a request has a time limit, and the number of connections is
bounded. Beyond the bound, a new connection replaces one that has no complete request, of the network with the most
connections, so that a health check is answered while others hold connections open. The kernel detects clients that have
vanished (TCP_USER_TIMEOUT). A client that goes away is no failure and leaves nothing in the log. The program, not
uvicorn, handles signals.

Plain HTTP without a proxy is for this machine alone. But any site that a browser on this machine visits may lead its
own name here (DNS rebinding), and could then read the answers. Such a request says that name in its Host. So the server
answers only requests for localhost or for an IP address, which nobody can lead elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from thinwire_common.reach.hosts import is_local_or_literal
from thinwire_common.tls import ServerTls, TlsListener
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError

REQUEST_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 4 << 10
SAFETY = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
OTHER_HOST = "only requests for localhost:{port}, or for an IP address with port {port}, are answered here\n"
ClientOf = Callable[[str, Sequence[str]], str]
"""The client's IP address, from that of the connection and the values of X-Forwarded-For, in their order."""


async def read_body(request: Request) -> bytes:
    """The body of a request. Raises HTTPException 413 once more than BODY_BYTES_MAX bytes are announced or come."""
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > BODY_BYTES_MAX:
        raise HTTPException(413, f"a body has at most {BODY_BYTES_MAX} bytes", SAFETY)
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > BODY_BYTES_MAX:
            raise HTTPException(413, f"a body has at most {BODY_BYTES_MAX} bytes", SAFETY)
    return found


class HttpServer:
    """Serves `routes` on a bound socket, from `start` to `stop`.

    tls: serve HTTPS with this certificate; None: plain HTTP. may_connect: whether a client with this IP address may.
    client_of: finds the client behind a proxy; None: the client is the other end of the connection. behind_proxy:
    whether a proxy in front passes on requests for its own name. network_of: groups the IP addresses of clients.
    """

    def __init__(
        self,
        bound: socket.socket,
        routes: Sequence[BaseRoute],
        connections_max: int,
        tls: ServerTls | None = None,
        may_connect: Callable[[str], bool] = lambda _: True,
        client_of: ClientOf | None = None,
        *,
        behind_proxy: bool = False,
        network_of: Callable[[str], str] = str,
    ) -> None:
        self._socket = bound
        self.scheme = "http" if tls is None else "https"
        connection = partial(
            _Connection, connections_max=connections_max, may_connect=may_connect, network_of=network_of
        )
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit this option
            silent_ms = round(limits.BROWSER_SILENT_S * 1000)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_ms)
        paths = [route.path for route in routes if isinstance(route, Route) and "{" not in route.path]
        middleware = [] if client_of is None else [Middleware(_BehindProxy, client_of)]
        app = Starlette(routes=routes, middleware=middleware, exception_handlers={404: _not_found(paths)})
        config = uvicorn.Config(
            _Outermost(app, None if behind_proxy or tls is not None else self.port),
            access_log=False,
            log_config=None,
            log_level="error",  # port scans are not worth a log line
            lifespan="off",
            proxy_headers=False,  # uvicorn would believe anybody on this machine, and reads them in its own way
            http=connection,  # type: ignore[arg-type]  # uvicorn only calls it
            ws="none",
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
            timeout_graceful_shutdown=math.ceil(limits.HTTP_SHUTDOWN_S),  # uvicorn takes whole seconds
        )
        self._server = _Server(config, tls, network_of)
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """The number of open connections, without those whose TLS handshake is under way."""
        return len(self._server.server_state.connections)

    def start(self) -> None:
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._socket.close()


def bind(host: str, port: int, advice: str, *, may_move: bool = False) -> socket.socket:
    """Return a listening socket.

    may_move: use another free port if this one is in use. advice: what to do about a failure; it ends the text of the
    ConfigError.
    """
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    try:
        try:
            return socket.create_server((bare, port), family=family)
        except OSError as error:
            if not may_move or error.errno != errno.EADDRINUSE:
                raise
            return socket.create_server((bare, 0), family=family)
    except OSError as error:
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; {advice}") from None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: ServerTls | None, network_of: Callable[[str], str]) -> None:
        super().__init__(config)
        self._tls = tls
        self._network_of = network_of

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn's own method would give each of any number of clients a minute for its TLS handshake."""
        await self.lifespan.startup()
        connection: Callable[..., Any] = self.config.http_protocol_class
        make = partial(connection, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        loop, backlog = asyncio.get_running_loop(), self.config.backlog
        servers: list[Any] = []
        for one in sockets or ():
            if self._tls is None:
                servers.append(await loop.create_server(make, sock=one, backlog=backlog))
            else:
                one.listen(backlog)
                listener = TlsListener(one, make, self._tls.context, limits.HTTP_REQUEST_S, self._network_of)
                servers.append(listener)
        self.servers = servers
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


class _Connection(H11Protocol):
    """Closes a connection whose next request takes too long to arrive, and connections beyond `connections_max`."""

    def __init__(
        self,
        *arguments: Any,
        connections_max: int,
        may_connect: Callable[[str], bool],
        network_of: Callable[[str], str],
        established: Callable[[], None] = lambda: None,
        **keywords: Any,
    ) -> None:
        """established: called when the connection is made, after its TLS handshake."""
        super().__init__(*arguments, **keywords)
        self._established = established
        self._connections_max = connections_max
        self._may_connect = may_connect
        self._network_of = network_of
        self._network = ""
        self._timer: asyncio.TimerHandle | None = None  # runs while the connection has no complete request
        self._since = self.loop.time()  # has it a request, or none

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._established()
        super().connection_made(transport)
        self._await_request()
        peer = transport.get_extra_info("peername")
        self._network = "" if peer is None else self._network_of(peer[0])
        if peer is None or not self._may_connect(peer[0]):  # it has gone already, or it is a stranger
            self.loop.call_soon(transport.abort)
        elif len(self.connections) > self._connections_max:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. If it came in the middle of another answer, that answer ends too.

        Otherwise uvicorn would send both, and log a traceback for each of which h11 refuses."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self.transport.close()
        elif self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:  # nobody will read the rest of the body
            self.transport.close()
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def _has_request(self) -> bool:
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    def _await_request(self) -> None:
        if self._has_request:
            self._stop_timer()
        elif self._timer is None:
            self._since = self.loop.time()
            self._timer = self.loop.call_later(limits.HTTP_REQUEST_S, self._close_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._since = self.loop.time()
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        self._timer = None
        self.transport.close()

    def _make_room(self) -> None:
        """Close a connection, of the network that has the most: if possible one without a complete request.

        This one is closed if its network has no other to give, or if no network has more than its own."""
        everybody = [one for one in self.connections if isinstance(one, _Connection)]
        of_networks = Counter(one._network for one in everybody)

        def place(one: _Connection) -> tuple[int, bool, float]:
            return -of_networks[one._network], one is self, one._since

        surplus = min((one for one in everybody if one._timer is not None), key=place)
        if surplus is self:  # all others are in use
            crowded = min(everybody, key=place)
            surplus = crowded if of_networks[crowded._network] > of_networks[self._network] else self
        self.connections.discard(surplus)
        surplus._stop_timer()
        self.loop.call_soon(surplus.transport.abort)  # asyncio is still setting up the transport of a new connection


class _Outermost:
    """Refuses requests for other hosts, and takes the departure of a client for no failure of a handler.

    port: that a request must name, beside localhost or an IP address; None: any host."""

    def __init__(self, app: ASGIApp, port: int | None) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if self._port is not None and scope["type"] == "http":
            hosts = [value.decode("latin1") for name, value in scope["headers"] if name == b"host"]
            if not hosts or not is_local_or_literal(hosts[0], self._port):
                app = PlainTextResponse(OTHER_HOST.format(port=self._port), 421, SAFETY)
        with contextlib.suppress(ClientDisconnect):
            await app(scope, receive, send)


class _BehindProxy:
    """Sets the client of each request to the one that `client_of` finds."""

    def __init__(self, app: ASGIApp, client_of: ClientOf) -> None:
        self._app = app
        self._client_of = client_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("client"):
            forwarded = [value.decode("latin1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
            host, port = scope["client"]
            client = self._client_of(host, forwarded)
            scope["client"] = (client, port if client == host else 0)
        await self._app(scope, receive, send)


def _not_found(paths: list[str]) -> Any:
    text = f"not found; available: {', '.join(paths)}\n"

    async def answer(request: Request, error: Exception) -> Response:
        return PlainTextResponse(text, 404, SAFETY)

    return answer
