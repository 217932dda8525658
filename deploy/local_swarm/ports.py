"""Finds ports for programs that others must know before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the range from which the system picks ports for connections and for port 0."""


def free_addresses(count: int) -> list[str]:
    """HOST:PORT of different ports that are free now. Only a program that asks for such a port by number can take it.

    Raises OSError if there are too few."""
    found: list[str] = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):  # not by a seed, which two processes may share
            if len(found) == count:
                return found
            with suppress(OSError):  # the port is in use
                held.enter_context(socket.create_server((HOST, port)))
                found.append(f"{HOST}:{port}")
    raise OSError(f"fewer than {count} ports of {PORTS.start} to {PORTS.stop - 1} are free")
