"""The volunteer's choice of how the peers of a node reach it, in a gossip run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_common.reach.hosts import HOST

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
