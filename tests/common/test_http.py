"""Tests of the shared HTTP server over real sockets: which requests it serves and which it refuses."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pytest
import uvloop
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from thinwire_common.http import REQUEST_BYTES_MAX, HttpServer, bind, read_body
from thinwire_common.tls import HANDSHAKES_MAX, ServerTls, TlsListener
from thinwire_proto import limits
from thinwire_proto.identity.certificates import new_authority, new_leaf
from thinwire_proto.identity.keys import SecretKey

CONNECTIONS_MAX = 4
NOW = datetime.now(timezone.utc)
AUTHORITY = new_authority(NOW)
LEAF = new_leaf(AUTHORITY, SecretKey(), ["127.0.0.1"], NOW)
ADVICE = "give another with --metrics"


async def metrics(request: Request) -> Response:
    return PlainTextResponse("a 1\n")


async def raises(request: Request) -> Response:
    raise RuntimeError("this page has a bug")


async def echo(request: Request) -> Response:
    return Response(await request.body())


async def held(request: Request) -> Response:
    """A response that ends only when the client leaves."""

    async def body() -> AsyncIterator[bytes]:
        yield b"begun"
        await asyncio.Event().wait()

    return StreamingResponse(body())


async def read(request: Request) -> Response:
    return Response(await read_body(request))


async def large(request: Request) -> Response:
    """A response that does not fit into the buffers of a connection."""
    return Response(bytes(1 << 24))


@pytest.fixture(params=["http", "https"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[HttpServer]:
    tls = ServerTls(LEAF.chain, LEAF.key) if request.param == "https" else None
    routes = [Route("/metrics", metrics), Route("/raises", raises), Route("/held", held)]
    routes += [Route("/large", large), *(Route(f"/{do.__name__}", do, methods=["POST"]) for do in (echo, read))]
    found = HttpServer(bind("127.0.0.1", 0, ADVICE), routes, CONNECTIONS_MAX, tls, behind_proxy=True)  # any Host
    found.start()
    yield found
    await found.stop()


async def connect(server: HttpServer, own: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """own: the address of this end."""
    context = ssl.create_default_context(cadata=AUTHORITY.chain.decode()) if server.scheme == "https" else None
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=context, local_addr=(own, 0))


async def ask(server: HttpServer, request: bytes) -> bytes:
    """All bytes received until the server closes the connection."""
    reader, writer = await connect(server)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes or resets the connection. Returns whether it sent nothing before."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


async def test_it_serves_its_routes_and_nothing_else(server: HttpServer) -> None:
    assert (await ask(server, get("/metrics?x"))).endswith(b"\r\n\r\na 1\n")
    head = await ask(server, get("/metrics", "HEAD"))
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: 4\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    missing = await ask(server, get("/"))
    assert missing.startswith(b"HTTP/1.1 404 ")
    assert missing.endswith(b"not found; available: /metrics, /raises, /held, /large, /echo, /read\n")
    assert (await ask(server, get("/metrics", "POST"))).startswith(b"HTTP/1.1 405 ")


HOSTS = [
    *[
        (host, 200)
        for host in ("localhost:{}", "LocalHost:{}", "127.0.0.1:{}", "127.9.9.9:{}", "[::1]:{}", "[::FFFF]:{}")
    ],
    *[(host, 200) for host in ("192.168.1.7:{}", "[2001:db8::1]:{}")],  # as of a tunnel: nobody can lead them elsewhere
    *[
        (host, 421)
        for host in ("evil.example:{}", "localhost.evil.example:{}", "127.0.0.1.evil.example:{}", "a.localhost:{}")
    ],
    *[(host, 421) for host in ("localhost", "127.0.0.1", "127.0.0.1:1", "[::1]", "localhost:", "localhost:{}1", "")],
    *[(host, 421) for host in ("::1:{}", "[127.0.0.1]:{}", "1.2.3:{}", "[::1]x:{}", "a@localhost:{}", "localhost:{}/")],
]


@pytest.mark.parametrize(("host", "status"), HOSTS)
async def test_on_this_machine_only_its_own_names_and_addresses_are_served(host: str, status: int) -> None:
    """Any site can lead its own name to 127.0.0.1, and read the answers in the visitor's browser (DNS rebinding)."""
    server = HttpServer(bind("127.0.0.1", 0, ADVICE), [Route("/metrics", metrics)], CONNECTIONS_MAX)
    server.start()
    told = host.format(server.port)
    answer = await ask(server, get("/metrics").replace(b"Host: x", f"Host: {told}".encode()))
    assert int(answer.split()[1]) == status, answer
    assert (b"a 1" in answer) == (status == 200)
    if status == 421:
        assert f"only requests for localhost:{server.port}, or for an IP address".encode() in answer
        missing = await ask(server, f"GET /nothing HTTP/1.1\r\nHost: {told}\r\nConnection: close\r\n\r\n".encode())
        assert missing.startswith(b"HTTP/1.1 421 ")
    await server.stop()


async def test_a_request_without_a_host_is_refused_on_this_machine() -> None:
    server = HttpServer(bind("127.0.0.1", 0, ADVICE), [Route("/metrics", metrics)], CONNECTIONS_MAX)
    server.start()
    assert (await ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 421 ")
    host = f"Host: localhost:{server.port}\r\n".encode()
    assert (await ask(server, b"GET /metrics HTTP/1.0\r\n" + host + b"\r\n")).endswith(b"a 1\n")
    assert (await ask(server, b"GET /metrics HTTP/1.1\r\n" + 2 * host + b"\r\n")).startswith(b"HTTP/1.1 400 ")
    await server.stop()


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"x" * 5000,
        b"POST /echo HTTP/1.1\r\nHost: x\r\nConte",
        b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /held HTTP/1.1\r\nHost: x\r\n\r\nGET",
    ],
)
@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_goes_away_leaves_nothing_in_the_log(
    server: HttpServer, sent: bytes, *, reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        for _ in range(3):
            _, writer = await connect(server)
            writer.write(sent)
            await writer.drain()
            if reset:
                writer.transport.abort()
            else:
                writer.close()
        while server.connections:
            await asyncio.sleep(0.01)
        assert (await ask(server, get("/metrics"))).startswith(b"HTTP/1.1 200 ")
    assert not caplog.records


async def test_the_size_of_a_request_is_limited(server: HttpServer) -> None:
    answer = await ask(server, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX)
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_an_idle_connection_is_closed(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.5)  # enough for the handshake
    for sent in (b"", b"GET /metrics HTTP/1.1\r\nHost:", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /me"):
        answer = await ask(server, sent)
        assert answer.endswith(b"a 1\n") if b"\r\n\r\n" in sent else answer == b""


@pytest.mark.parametrize("path", ["/metrics", "/echo"])
async def test_a_connection_whose_body_never_ends_is_closed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.5)  # enough for the handshake
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nslow"
    answer = await asyncio.wait_for(ask(server, head.encode()), timeout=30)
    assert answer[:13] == (b"HTTP/1.1 405 " if path == "/metrics" else b"")


async def test_a_surplus_connection_replaces_the_oldest_idle_one(server: HttpServer) -> None:
    connections = []
    for sent in (b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n", b"", b"POST /metrics HTTP/1.1\r\n", b""):
        reader, writer = await connect(server)
        writer.write(sent)
        if sent.startswith(b"GET"):
            await reader.readexactly(1)  # the response has begun
        connections.append((reader, writer))
    for oldest in (1, 2, 3):
        reader, writer = await connect(server)
        assert await asyncio.wait_for(closed(connections[oldest][0]), timeout=30)
        writer.write(get("/metrics").replace(b"close", b"keep-alive"))
        assert (await reader.readexactly(13)) == b"HTTP/1.1 200 "
        assert (await reader.readuntil(b"a 1\n")).endswith(b"a 1\n")
        connections.append((reader, writer))
    assert not connections[0][0].at_eof()
    for _, writer in connections:
        writer.close()


async def test_the_network_with_the_most_connections_gives_way(server: HttpServer) -> None:
    """Its connections are all in use, as those of slow readers are. Each address is a network here."""
    crowd = []
    for _ in range(CONNECTIONS_MAX):
        reader, writer = await connect(server, "127.0.0.2")
        writer.write(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1)
        crowd.append((reader, writer))
    held = []
    for oldest in range(2):
        reader, writer = await connect(server)
        writer.write(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readexactly(13)) == b"HTTP/1.1 200 "
        with suppress(ConnectionResetError):
            await asyncio.wait_for(crowd[oldest][0].read(), timeout=30)
        held.append((reader, writer))
    reader, writer = await connect(server, "127.0.0.2")
    assert await asyncio.wait_for(closed(reader), timeout=30)
    assert not any(reader.at_eof() for reader, _ in (*crowd[2:], *held))
    for _, one in (*crowd, *held, (reader, writer)):
        one.close()


async def tls_server(tls: ServerTls, strangers: bool = False) -> HttpServer:
    bound = bind("127.0.0.1", 0, ADVICE)
    found = HttpServer(bound, [Route("/metrics", metrics)], CONNECTIONS_MAX, tls, lambda address: not strangers)
    found.start()
    await asyncio.sleep(0)
    return found


async def test_a_new_certificate_leaves_open_connections_alone() -> None:
    tls = ServerTls(LEAF.chain, LEAF.key)
    server = await tls_server(tls)
    reader, writer = await connect(server)
    other = new_leaf(AUTHORITY, SecretKey(), ["127.0.0.1"], NOW)
    tls.replace(other.chain, other.key)
    _, later = await connect(server)
    served = [one.get_extra_info("ssl_object").getpeercert(binary_form=True) for one in (writer, later)]
    assert served == [one.parsed.public_bytes(Encoding.DER) for one in (LEAF, other)]
    writer.write(get("/metrics"))
    assert (await reader.read()).endswith(b"a 1\n")
    later.close()
    await server.stop()


async def test_a_handshake_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.05)
    server = await tls_server(ServerTls(LEAF.chain, LEAF.key))
    for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        await asyncio.wait_for(closed(reader), timeout=30)
        writer.close()
    await server.stop()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_handshakes_that_stop_are_bounded_in_number_and_give_way(run: Callable[[Any], None]) -> None:
    run(_hold_handshakes())


async def _hold_handshakes() -> None:
    server = await tls_server(ServerTls(LEAF.chain, LEAF.key))
    held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(HANDSHAKES_MAX + 5)]
    for reader, _ in held[:5]:
        assert await asyncio.wait_for(closed(reader), timeout=30)
    assert not any(reader.at_eof() for reader, _ in held[5:])
    mine = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
    held += [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(HANDSHAKES_MAX)]
    for reader, _ in held[: HANDSHAKES_MAX + 6]:
        assert await asyncio.wait_for(closed(reader), timeout=30)
    assert not mine[0].at_eof()  # its network has fewer, so it does not give way to those that came later
    reader, writer = await connect(server)  # takes the place of the next one
    assert await asyncio.wait_for(closed(held[HANDSHAKES_MAX + 6][0]), timeout=30)
    writer.write(get("/metrics"))
    assert (await reader.read()).endswith(b"a 1\n")
    await server.stop()
    rest = (*held[HANDSHAKES_MAX + 7 :], mine)
    assert all([await asyncio.wait_for(closed(reader), timeout=30) for reader, _ in rest])
    for one in (writer, mine[1], *(one for _, one in held)):
        one.close()
        with suppress(ConnectionResetError):
            await one.wait_closed()


class FailingAccept(socket.socket):
    failures = 2

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("accept has a bug")
        return super().accept()


async def test_a_fault_of_the_program_is_logged_and_the_next_connection_is_served(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ACCEPT_AGAIN_S", 0.0)
    monkeypatch.setattr(limits, "FAILURE_TOLD_AGAIN_S", 1e9)
    faults = ["a protocol has a bug"] * 2

    class Greeting(asyncio.Protocol):
        def __init__(self, established: Callable[[], None]) -> None:
            if faults:
                raise RuntimeError(faults.pop())

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")

    bound = FailingAccept()
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    context = ssl.create_default_context(cadata=AUTHORITY.chain.decode())
    with caplog.at_level("ERROR"):
        listener = TlsListener(bound, Greeting, ServerTls(LEAF.chain, LEAF.key).context, 30)
        for _ in range(2):
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await asyncio.wait_for(asyncio.open_connection(*bound.getsockname(), ssl=context), timeout=30)
        reader, writer = await asyncio.open_connection(*bound.getsockname(), ssl=context)
        assert await reader.readexactly(5) == b"hello"
    writer.close()
    listener.close()
    await listener.wait_closed()
    bound.close()
    assert listener.failures == 4
    assert listener.handshakes == 0
    (record,) = caplog.records  # of the first one; the log is not filled
    assert record.exc_info is not None
    assert "accept has a bug" in str(record.exc_info[1])


async def test_a_client_that_may_not_connect_gets_nothing() -> None:
    server = await tls_server(ServerTls(LEAF.chain, LEAF.key), strangers=True)
    reader, writer = await connect(server)
    assert await asyncio.wait_for(closed(reader), timeout=30)
    writer.close()
    await server.stop()


async def test_signals_stay_with_the_program(server: HttpServer) -> None:
    await ask(server, get("/metrics"))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("body", [b"5\r\nhello\r\nnonsense\r\n\r\n", b"f" * 18 + b"\r\n", b"{}{}{}\r\n\r\n"])
@pytest.mark.parametrize("path", ["/metrics", "/held", "/nothing"])
async def test_nonsense_after_a_request_stays_out_of_the_log(
    server: HttpServer, path: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A fuzzer's find: uvicorn answered the nonsense in the middle of the other answer, and logged a traceback."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with caplog.at_level("ERROR"):
        for cut in (0, len(body) // 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head + body[:cut])
            await writer.drain()
            writer.write(body[cut:])
            await asyncio.wait_for(closed(reader), timeout=30)
            writer.close()
        assert (await ask(server, get("/metrics"))).startswith(b"HTTP/1.1 200 ")
    assert not caplog.records
