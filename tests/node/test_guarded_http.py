"""A node connects to the address that it checked, whatever names, redirects and proxies say. Over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.file_server import FileServer, serving
from thinwire_node.data_addresses import LOOPBACK, PUBLIC, DataAddresses, read_networks
from thinwire_node.limits.limits import check
from thinwire_node.limits.month import MonthlyBudget
from thinwire_node.limits.throttle import Throttle
from thinwire_node.session.download import SourceFailed, SourceRefused, download
from thinwire_proto.blobs import Blob

OWN = DataAddresses(networks=LOOPBACK)
NAME = "data.example"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def blob(server: FileServer) -> Blob:
    data = random.Random(1).randbytes(50_000)
    found = Blob(hashlib.sha256(data).hexdigest(), len(data))
    (server.folder / found.hash).write_bytes(data)
    return found


async def fetch(url: str, blob: Blob, folder: Path, allowed: DataAddresses) -> bytes:
    path = folder / "fetched"
    await download(f"{url}/{blob.hash}", blob.size, path, allowed)
    return path.read_bytes()


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.0.0.1", "0", "[::1]", "[::ffff:127.0.0.1]", "localhost"])
async def test_another_spelling_of_the_own_machine_changes_nothing(
    server: FileServer, blob: Blob, tmp_path: Path, host: str
) -> None:
    allowed = DataAddresses(schemes=frozenset({"http"}))
    with pytest.raises(SourceFailed, match=r"no address of the public internet|no connection"):
        await fetch(f"http://{host}:{server.server_address[1]}/blobs", blob, tmp_path, allowed)
    assert server.asked == []


async def test_a_redirect_to_the_own_machine_is_refused(
    server: FileServer, blob: Blob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public server, played by a second server on a network that is allowed, leads to 127.0.0.1."""
    (tmp_path / "public").mkdir()
    with serving(tmp_path / "public") as public:
        port = public.server_address[1]
        public.faults[blob.hash] = f"redirect:{server.url}/{blob.hash}"
        resolve(monkeypatch, {NAME: "127.0.0.1"})
        only_there = DataAddresses(frozenset({"http"}), read_networks(["127.0.0.1/32"]))
        assert await fetch(f"http://{NAME}:{port}/blobs", blob, tmp_path, only_there)
        asked = len(server.asked)
        (tmp_path / "fetched").unlink()
        for host in ("127.0.0.2", "[64:ff9b:1::7f00:1]", "[::127.0.0.1]"):
            public.faults[blob.hash] = f"redirect:http://{host}:{server.server_address[1]}/{blob.hash}"
            with pytest.raises(SourceRefused, match=r"[0-9a-f.:]+ is no address of the public internet"):
                await fetch(f"http://{NAME}:{port}/blobs", blob, tmp_path, only_there)
        assert len(server.asked) == asked


def resolve(monkeypatch: pytest.MonkeyPatch, names: dict[str, str | list[str]]) -> list[str]:
    """Let names lead to these addresses: to one, or to each of a list in turn. Returns what was looked up."""
    real, asked = socket.getaddrinfo, list[str]()

    def look_up(host: str, *arguments: Any, **keywords: Any) -> Any:
        asked.append(host)
        found = names.get(host, host)
        if not isinstance(found, str):
            found = found.pop(0)
        return real(found, *arguments, **keywords)

    monkeypatch.setattr("thinwire_node.session.guarded_http.socket.getaddrinfo", look_up)
    return asked


async def test_a_name_that_leads_elsewhere_at_the_next_look_up_gains_nothing(
    server: FileServer, blob: Blob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thinwire_node.session.download.FETCH_SILENT_S", 0.3)
    asked = resolve(monkeypatch, {NAME: ["192.0.2.1", "127.0.0.1"]})  # the first is for documentation: nobody answers
    allowed = DataAddresses(frozenset({"http"}), read_networks(["192.0.2.0/24"]))
    with pytest.raises(SourceFailed):
        await fetch(f"http://{NAME}:{server.server_address[1]}/blobs", blob, tmp_path, allowed)
    assert asked == [NAME]  # it was resolved once, and the connection went there
    assert server.asked == []
    with pytest.raises(SourceRefused):
        await fetch(f"http://{NAME}:{server.server_address[1]}/blobs", blob, tmp_path, allowed)


async def test_each_address_of_a_name_is_checked(
    server: FileServer, blob: Blob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name has several addresses. Those that are refused are not tried, and the others are."""
    real, answers = socket.getaddrinfo, ["64:ff9b:1::7f00:1", "127.0.0.2", "::127.0.0.1", "127.0.0.1"]

    def look_up(host: str, *arguments: Any, **keywords: Any) -> Any:
        return [entry for answer in answers for entry in real(answer, *arguments, **keywords)]

    monkeypatch.setattr("thinwire_node.session.guarded_http.socket.getaddrinfo", look_up)
    only_there = DataAddresses(frozenset({"http"}), read_networks(["127.0.0.1/32"]))
    url = f"http://{NAME}:{server.server_address[1]}/blobs"
    assert hashlib.sha256(await fetch(url, blob, tmp_path, only_there)).hexdigest() == blob.hash
    answers.pop()
    (tmp_path / "fetched").unlink()
    with pytest.raises(SourceRefused) as refused:
        await fetch(url, blob, tmp_path, only_there)
    assert all(f"{answer} is no address" in str(refused.value) for answer in ("64:ff9b:1::7f00:1", "127.0.0.2"))


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write an authority, and a chain with its key for the host `name`. Returns both files, in PEM."""
    now = datetime.now(timezone.utc)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, found)]) for found in ("test authority", name)]
    found = []
    for number, is_authority in enumerate((True, False)):
        builder = x509.CertificateBuilder().subject_name(names[number]).issuer_name(names[0])
        builder = builder.public_key(keys[number].public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        found.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    key = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authority, chain = folder / "authority.pem", folder / "chain.pem"
    authority.write_bytes(found[0])
    chain.write_bytes(found[1] + key)
    return authority, chain


async def test_https_checks_the_certificate_of_the_name(
    server: FileServer, blob: Blob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, chain = certificate(tmp_path, NAME)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    resolve(monkeypatch, {NAME: "127.0.0.1", "other.example": "127.0.0.1"})
    port = server.server_address[1]
    with pytest.raises(SourceFailed, match="CERTIFICATE_VERIFY_FAILED"):
        await fetch(f"https://{NAME}:{port}/blobs", blob, tmp_path, OWN)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert hashlib.sha256(await fetch(f"https://{NAME}:{port}/blobs", blob, tmp_path, OWN)).hexdigest() == blob.hash
    (tmp_path / "fetched").unlink()
    with pytest.raises(SourceFailed, match="CERTIFICATE_VERIFY_FAILED"):
        await fetch(f"https://other.example:{port}/blobs", blob, tmp_path, OWN)


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """An HTTP proxy on loopback that refuses every CONNECT, and the first lines of what it was asked."""
    asked: list[str] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4096).decode().splitlines()[0])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


async def test_a_proxy_is_asked_only_for_names_that_a_node_may_read(
    blob: Blob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, {NAME: "8.8.8.8", "router.example": "192.168.1.1"})
    with proxy() as (address, asked):
        monkeypatch.setenv("https_proxy", address)
        with pytest.raises(SourceRefused, match=r"192\.168\.1\.1 is no address of the public internet"):
            await fetch("https://router.example/blobs", blob, tmp_path, PUBLIC)
        assert asked == []
        with pytest.raises(SourceFailed, match="403"):
            await fetch(f"https://{NAME}/blobs", blob, tmp_path, PUBLIC)
        assert [line.split()[:2] for line in asked] == [["CONNECT", f"{NAME}:443"]]


RECORD = b"\x16\x03\x03\x40\x00" + bytes(1 << 14)
"""A record of TLS, for which a client waits until all of it is there."""
FULL_S = 0.5
"""What takes nothing for so long is full."""
AT_ONCE_BYTES_MAX = 40_000
"""Less than the window of a connection whose buffers the limits have not bounded."""


async def test_limits_bound_what_a_proxy_may_send_at_once(
    blob: Blob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, {NAME: "8.8.8.8"})
    throttle = Throttle(
        check({"max_download": "2kB/s"}), MonthlyBudget(tmp_path / "month.json", None, 1, 0.0), time.time
    )

    def flood() -> int:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            assert connection.recv(1)  # the client's hello
            connection.setblocking(False)
            sent = 0
            while sent < AT_ONCE_BYTES_MAX and select.select([], [connection], [], FULL_S)[1]:
                sent += connection.send(RECORD)
            return sent

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        address = f"https://{NAME}/blobs/{blob.hash}"
        fetching = asyncio.ensure_future(download(address, blob.size, tmp_path / "fetched", PUBLIC, throttle))
        assert 0 < await asyncio.to_thread(flood) < AT_ONCE_BYTES_MAX
        with pytest.raises(SourceFailed):
            await fetching
