"""One short TLS connection that finds the way to a server, and what to check it by afterwards.

gRPC can neither show the certificate of a server nor say why a connection fails. So this module connects first, reads
the certificate, and says in words what is wrong. What it returns is all that gRPC then needs: the address that
answered, the roots to trust, and the name to expect. Where this machine's network has an HTTP proxy (`https_proxy`,
`no_proxy`), the way leads through it (CONNECT).
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote, urlsplit

from thinwire_common.reach.errors import Unreachable, WrongCertificate
from thinwire_common.reach.happy_eyeballs import Refusal, connect_first
from thinwire_common.within import Within
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.authority import COORDINATOR, Party, Untrusted, check_certificate

HEAD_BYTES_MAX = 8192
"""Size of a proxy's answer."""
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]{0,100}))?")


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. url: as `https_proxy` gives it, with a password if it needs one."""

    host: str
    port: int
    url: str = field(repr=False)
    user: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


def proxy_for(host: str, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """The proxy to use for a host; None to connect directly. Raises ConfigError if `https_proxy` is not valid."""
    url = environment.get("https_proxy") or environment.get("HTTPS_PROXY")
    if not url or _is_local(host) or _excluded(host, environment.get("no_proxy") or environment.get("NO_PROXY") or ""):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        name, port = parts.hostname, parts.port or 3128
    except ValueError:
        name, port = None, 0
    if parts.scheme != "http" or not name:
        raise ConfigError(
            "https_proxy must be http://[USER:PASSWORD@]HOST:PORT; proxies that speak TLS do not work here"
        )
    return Proxy(name, port, parts.geturl(), unquote(parts.username or ""), unquote(parts.password or ""))


async def pass_through(proxy: Proxy, connection: socket.socket, address: str) -> None:
    """Ask a proxy, over a connected socket, for a connection to HOST:PORT. Raises Unreachable."""
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.user:
        secret = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {secret}")
    loop, head = asyncio.get_running_loop(), b""
    await loop.sock_sendall(connection, "\r\n".join([*lines, "", ""]).encode())
    while not head.endswith(b"\r\n\r\n"):
        byte = await loop.sock_recv(connection, 1)  # a byte more would belong to TLS
        head += byte
        if not byte or len(head) > HEAD_BYTES_MAX:
            break
    _check_answer(proxy, head, address)


def _check_answer(proxy: Proxy, head: bytes, address: str) -> None:
    found = STATUS_LINE.match(head)
    if not found:
        raise Unreachable(f"what answers at {proxy} is not an HTTP proxy; check https_proxy")
    code, text = int(found[1]), ascii((found[2] or b"").decode(errors="replace"))
    if code == 407 and proxy.user:
        raise Unreachable(f"the proxy {proxy} refuses the user or the password in https_proxy (407)")
    if code == 407:
        raise Unreachable(f"the proxy {proxy} wants a password (407): https_proxy=http://USER:PASSWORD@{proxy}")
    if not 200 <= code < 300:
        raise Unreachable(
            f"the proxy {proxy} does not connect to {address}: {code} {text}; many proxies allow port 443 only, so ask "
            "the organizer for an invite to that port, or add the host to no_proxy"
        )


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _excluded(host: str, no_proxy: str) -> bool:
    """Whether a host is in the list: names with all below them, addresses, networks, or `*`. As gRPC reads it."""
    for entry in filter(None, (part.strip() for part in no_proxy.split(","))):
        name = entry.removeprefix("*").removeprefix(".").lower()
        if entry == "*" or host.lower() == name or host.lower().endswith(f".{name}"):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


ALPN = "h2"
"""gRPC speaks HTTP/2, and says so in the TLS handshake."""


@dataclass(frozen=True)
class Way:
    """A way that worked.

    peer: IP address and port of the TCP connection, which are the proxy's if there is one. roots: PEM, the authorities
    to trust; None: those that gRPC brings. name: to expect in the certificate."""

    peer: tuple[str, int]
    proxy: Proxy | None
    name: str
    roots: bytes | None = field(repr=False)


async def find_way(
    host: str,
    port: int,
    fingerprint: bytes | None,
    *,
    public_tls: bool,
    party: Party = COORDINATOR,
    refusal: Refusal | None = None,
) -> Way:
    """Connect to a server and check who answers, within DIAL_S. Raises Unreachable or ConfigError.

    fingerprint: of the server's key; None: any coordinator will do, because it is on this machine. public_tls: the
    certificate there is one that browsers accept, and is checked by the host's name; whoever calls must check the
    coordinator's key in what follows. party: the kind of server. refusal: why an address must not be connected to."""
    proxy = proxy_for(host)
    name = host if public_tls else party.server_name
    context = ssl.create_default_context() if public_tls else _unchecked()
    context.set_alpn_protocols([ALPN])
    try:
        async with Within(limits.DIAL_S):
            peer, certificate = await _handshake(host, port, proxy, context, name, refusal)
    except (TimeoutError, asyncio.TimeoutError):
        raise Unreachable(
            f"no answer within {limits.DIAL_S:.0f} s; a firewall or router may drop the connection, or the "
            f"{party.noun} is off"
        ) from None
    if public_tls:
        return Way(peer, proxy, name, _system_roots(context))
    try:
        return Way(peer, proxy, name, check_certificate(certificate, fingerprint, datetime.now(timezone.utc), party))
    except Untrusted as error:
        raise WrongCertificate(str(error)) from None


async def _handshake(
    host: str, port: int, proxy: Proxy | None, context: ssl.SSLContext, name: str, refusal: Refusal | None
) -> tuple[tuple[str, int], bytes]:
    """Returns the IP address and port, and the server's certificate (DER)."""
    connection = await _connected(host, port, proxy, refusal)
    try:
        peer: tuple[str, int] = connection.getpeername()[:2]
        if proxy is not None:
            await pass_through(proxy, connection, f"{f'[{host}]' if ':' in host else host}:{port}")
    except OSError:
        connection.close()
        raise Unreachable("the connection was cut at once; a firewall may do so") from None
    except BaseException:
        connection.close()
        raise
    try:  # from here on, the transport owns the socket
        _, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname=name)
    except ssl.SSLError as error:
        raise Unreachable(_in_words(error, name)) from None
    except OSError:
        raise Unreachable(
            "the connection was cut during the TLS handshake: something else than a coordinator listens there, or "
            "somebody in between does not let TLS pass"
        ) from None
    try:
        session: Any = writer.get_extra_info("ssl_object")
        if session.selected_alpn_protocol() != ALPN:
            raise Unreachable("what answers there speaks TLS but not gRPC; a proxy in front must pass on HTTP/2")
        certificate: bytes = session.getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return peer, certificate


async def _connected(host: str, port: int, proxy: Proxy | None, refusal: Refusal | None) -> socket.socket:
    if proxy is None:
        return await connect_first(host, port, refusal)
    if refusal is not None:
        raise Unreachable("this machine is behind a proxy, which would resolve the name")
    try:
        return await connect_first(proxy.host, proxy.port, listener="a proxy")
    except Unreachable as error:
        raise Unreachable(f"the proxy of https_proxy: {error}") from None


def _unchecked() -> ssl.SSLContext:
    """A context that takes any certificate. What it reads is checked afterwards, by `check_certificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _system_roots(context: ssl.SSLContext) -> bytes | None:
    """The authorities that this system trusts, PEM; None if they are in a form that only OpenSSL reads."""
    found = context.get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode() or None


def _in_words(error: ssl.SSLError, name: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate there is not valid for {name}: {error.verify_message}; tell the organizer"
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"):
        return "what answers there speaks plain text, not TLS: another service, or a coordinator with --insecure"
    return f"no TLS connection: {(error.reason or 'UNKNOWN').lower().replace('_', ' ')}"
