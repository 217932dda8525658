"""The HTTP proxy of this machine's network (`https_proxy`, `no_proxy`), and the way through it (CONNECT)."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from thinwire_common.reach.errors import Unreachable
from thinwire_proto.errors import ConfigError

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
