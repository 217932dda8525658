"""How the peers of a node reach it, in a gossip run: the volunteer's choice, and the local address to listen on."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from ipaddress import ip_address

from thinwire_common.reach.hosts import HOST
from thinwire_proto.errors import ConfigError

RELAY = "relay"
"""The value of `--peers` with which a node has no direct lines."""


@dataclass(frozen=True)
class PeerSettings:
    """port: to listen on for peers; 0: any free one; None: none. host: where peers reach that port; empty: where the
    coordinator sees the node. dials: whether the node connects to peers that listen."""

    port: int | None = None
    host: str = ""
    dials: bool = True


def read_peers(text: str) -> PeerSettings:
    """Read the option `--peers`: [HOST:]PORT, or `relay`. Raises ValueError."""
    if text == RELAY:
        return PeerSettings(dials=False)
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535) or (colon and not host):
        raise ValueError(f"{text!r} is not [HOST:]PORT, as in 7710 or node.example:7710, and not {RELAY!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [2001:db8::1]:7710")
    if host and not HOST.fullmatch(host):
        raise ValueError(f"{host!r} is neither an address nor a name of a host")
    return PeerSettings(int(port), host)


ALL = "[::]"
"""All addresses of this machine, IPv4 and IPv6."""


def bind_host(host: str) -> str:
    """The host as gRPC takes it. host: at which peers reach this node: an address of this machine, which is then the
    only one that it listens on; a name, or an address of a router that passes connections on; or empty."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return ALL
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return ALL
    return host if address.version == 4 else f"[{address}]"


def check_free(host: str, port: int) -> None:
    """Raise ConfigError if this port cannot be listened on. So the node fails before it joins. host: see `bind_host`;
    port 0: any free one."""
    where = bind_host(host)
    address = where.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if where == ALL and not socket.has_dualstack_ipv6():
        family, address = socket.AF_INET, ""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended hold no port
            if where == ALL and family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((address, port))
    except OSError:
        raise cannot_listen(host, port) from None


def cannot_listen(host: str, port: int) -> ConfigError:
    return ConfigError(
        f"cannot listen for peers on {bind_host(host)}:{port}: the port is in use, or this system does not allow it; "
        "give another with --peers, or allow it"
    )
