"""Addresses of the coordinator: the one that stands in invites, if the organizer names none."""

from __future__ import annotations

import ipaddress
import socket

from thinwire_common.options import host_and_port
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import ADDRESS

FAR = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation (RFC 5737 and 3849). A UDP socket that is connected to them sends nothing."""


def checked_address(text: str) -> str:
    """HOST:PORT as it may stand in an invite; an IPv6 address needs brackets. Raises ValueError."""
    host, port = host_and_port(text, port_min=1)
    if not ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is not HOST:PORT, as in swarm.example.org:7700 or [2001:db8::1]:7700")
    return f"{host}:{port}"


def address_for_invites(listen: str, port: int) -> str:
    """HOST:PORT in invites, for a coordinator that listens on `listen` with this port. Raises ConfigError."""
    host = listen.rpartition(":")[0].strip("[]")
    if is_any(host):
        host = outgoing_host()
    text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return checked_address(text)
    except ValueError:
        raise ConfigError(f"{text} cannot stand in invites; give --address HOST:PORT") from None


def is_any(host: str) -> bool:
    """Whether this means all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def outgoing_host() -> str:
    """The address that this machine uses towards the internet; the loopback if it has no network."""
    for family, far in FAR:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
