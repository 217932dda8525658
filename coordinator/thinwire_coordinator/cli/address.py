"""Addresses on the command line."""

from __future__ import annotations

from thinwire_proto.errors import ConfigError


def check_address(address: str) -> str:
    """HOST:PORT with a port of 0 … 65535. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= 65535):
        raise ConfigError(f"{address!r} is not HOST:PORT, as in 127.0.0.1:7700")
    return address
