"""Finding a way to a coordinator: real sockets, real TLS, a real proxy, and what is said if it fails."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import uvloop

from support.connect_proxy import ConnectProxy, proxy_at
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.happy_eyeballs import connect_first
from thinwire_common.reach.preflight import Way, find_way, proxy_for
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.certificates import Certificate, new_authority, new_leaf
from thinwire_proto.identity.keys import SecretKey

KEY = SecretKey(bytes(range(32)))
NOW = datetime.now(timezone.utc)
AUTHORITY = new_authority(NOW)
LEAF = new_leaf(AUTHORITY, KEY, ["localhost", "127.0.0.1"], NOW)
Run = Callable[[Coroutine[Any, Any, Any]], Any]
V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Both event loops, without the proxies of this machine."""
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return asyncio.run if request.param == "asyncio" else uvloop.run


@asynccontextmanager
async def server(
    folder: Path, certificate: Certificate | None = LEAF, alpn: str = "h2", host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """A server that ends each connection after the handshake; without a certificate, it speaks HTTP/2 in plain text."""
    context = None
    if certificate is not None:
        (folder / "server.pem").write_bytes(certificate.chain + certificate.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        context.set_alpn_protocols([alpn])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # the SETTINGS frame of HTTP/2
        try:
            await reader.read(1)
        finally:
            writer.transport.abort()  # also where the loop ends before it hears that the other end is gone

    listening = await asyncio.start_server(serve, host, 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


async def way(port: int, host: str = "127.0.0.1", key: SecretKey = KEY, *, public_tls: bool = False) -> Way:
    return await find_way(host, port, key.public.fingerprint, public_tls=public_tls)


@pytest.mark.parametrize(("host", "peer"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", "")])
def test_the_way_names_the_address_that_answered(run: Run, tmp_path: Path, host: str, peer: str) -> None:
    async def main() -> None:
        async with server(tmp_path, host=peer or "127.0.0.1") as port:
            found = await way(port, host)
            assert found.peer == (peer or "127.0.0.1", port)
            assert found.roots == AUTHORITY.chain
            assert found.name == "thinwire-coordinator"

    run(main())


def failure(run: Run, main: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(Unreachable) as caught:
        run(main)
    return str(caught.value)


@pytest.mark.parametrize(
    ("certificate", "alpn", "key", "said"),
    [
        (LEAF, "h2", SecretKey(), "another coordinator than the invite names answered, or somebody is in between"),
        (new_leaf(AUTHORITY, KEY, [], NOW - timedelta(days=100)), "h2", KEY, "has expired"),
        (None, "h2", KEY, "speaks plain text, not TLS"),
        (LEAF, "http/1.1", KEY, "speaks TLS but not gRPC"),
    ],
    ids=["another key", "expired", "plain text", "no gRPC"],
)
def test_whoever_is_not_the_coordinator_of_the_invite_is_named(
    run: Run, tmp_path: Path, certificate: Certificate | None, alpn: str, key: SecretKey, said: str
) -> None:
    async def main() -> None:
        async with server(tmp_path, certificate, alpn) as port:
            await way(port, key=key)

    assert said in failure(run, main())


def test_a_server_that_never_answers_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DIAL_S", 0.2)

    async def main() -> None:
        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            finally:
                writer.transport.abort()

        listening = await asyncio.start_server(wait, "127.0.0.1", 0)
        async with listening:
            await way(listening.sockets[0].getsockname()[1])

    assert "a firewall or router may drop the connection" in failure(run, main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_public_certificate_is_checked_by_the_system(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    (tmp_path / "roots.pem").write_bytes(AUTHORITY.chain)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))

    async def main() -> None:
        async with server(tmp_path) as port:
            found = await way(port, host, public_tls=True)
            assert found.name == host
            assert found.roots is not None
            assert ssl.PEM_cert_to_DER_cert(found.roots.decode()) == ssl.PEM_cert_to_DER_cert(AUTHORITY.chain.decode())

    run(main())


def test_what_is_wrong_with_a_public_certificate_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(certificate: Certificate) -> None:
        async with server(tmp_path, certificate) as port:
            await way(port, public_tls=True)

    assert "unable to get local issuer certificate" in failure(run, main(LEAF))
    (tmp_path / "roots.pem").write_bytes(AUTHORITY.chain)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    assert "is not valid for '127.0.0.1'" in failure(run, main(new_leaf(AUTHORITY, KEY, [], NOW)))
    assert "has expired" in failure(run, main(new_leaf(AUTHORITY, KEY, ["127.0.0.1"], NOW - timedelta(days=90))))


def through(monkeypatch: pytest.MonkeyPatch, proxy: int, user: str = "") -> str:
    """Use a proxy for a name that only the proxy knows. Returns that name."""
    monkeypatch.setenv("https_proxy", f"http://{user}127.0.0.1:{proxy}")
    return "coordinator.invalid"


def test_the_way_leads_through_a_proxy(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        proxy = ConnectProxy("me:p@ss word", hosts={"coordinator.invalid": "127.0.0.1"})
        async with server(tmp_path) as port, proxy_at(proxy) as proxy_port:
            host = through(monkeypatch, proxy_port, "me:p%40ss%20word@")
            found = await way(port, host)
            assert found.peer == ("127.0.0.1", proxy_port)
            assert found.roots == AUTHORITY.chain
            assert proxy.passed == [f"{host}:{port}"]
            monkeypatch.setenv("no_proxy", "example.org, .invalid")
            with pytest.raises(Unreachable, match=r"the name coordinator\.invalid cannot be found"):
                await way(port, host)

    run(main())


@pytest.mark.parametrize(
    ("user", "proxy", "text"),
    [
        ("", ConnectProxy("me:secret"), r"wants a password \(407\): https_proxy=http://USER:PASSWORD@127"),
        ("me:wrong@", ConnectProxy("me:secret"), r"refuses the user or the password in https_proxy \(407\)"),
        ("", ConnectProxy(refuses="403 Not \x1b[31mhere"), r"403 'Not \\x1b\[31mhere'; many proxies allow port 443"),
        ("", ConnectProxy(refuses="x" * 9000), r"allow port 443|is not an HTTP proxy"),
    ],
)
def test_what_a_proxy_refuses_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, user: str, proxy: ConnectProxy, text: str
) -> None:
    async def main() -> None:
        async with proxy_at(proxy) as port:
            await way(7700, through(monkeypatch, port, user))

    with pytest.raises(Unreachable, match=text):
        run(main())


def test_a_proxy_that_is_away_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable, match=r"the proxy of https_proxy: .* that a proxy runs there"):
        run(way(7700, through(monkeypatch, 9)))


@pytest.mark.parametrize("url", ["https://proxy:1", "http://", "http://proxy:port", "socks5://proxy:1"])
def test_a_proxy_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="https_proxy must be http"):
        proxy_for("example.org", {"https_proxy": url})


@pytest.mark.parametrize("host", ["a.example.org", "example.org", "10.1.2.3", "127.0.0.1", "localhost", "::1"])
def test_no_proxy_excludes(host: str) -> None:
    environment = {"HTTPS_PROXY": "proxy:1", "NO_PROXY": "other, .example.org,10.0.0.0/8"}
    assert proxy_for(host, environment) is None
    found = proxy_for("notexample.org", environment)
    assert found is not None
    assert (found.host, found.port) == ("proxy", 1)


def test_a_silent_address_does_not_keep_the_next_one_waiting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with socket.socket() as silent, socket.create_server(("127.0.0.1", 0)) as answers:
            silent.bind(("127.0.0.2", answers.getsockname()[1]))
            silent.listen(0)
            fillers = [_begun("127.0.0.2", answers.getsockname()[1]) for _ in range(4)]  # the queue is full
            found = [(V4, V4, 0, "", (host, answers.getsockname()[1])) for host in ("127.0.0.2", "127.0.0.1")]

            def resolve(*_: Any, **__: Any) -> Any:
                return [(family, 1, 6, "", address) for family, _, _, _, address in found]

            monkeypatch.setattr(socket, "getaddrinfo", resolve)
            connected = await connect_first("both", 1)
            assert connected.getpeername()[0] == "127.0.0.1"
            connected.close()
            for filler in fillers:
                filler.close()

    run(main())


def _begun(host: str, port: int) -> socket.socket:
    own = socket.socket()
    own.setblocking(False)
    own.connect_ex((host, port))
    return own
