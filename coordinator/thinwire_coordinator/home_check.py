"""Tries the address in invites: the coordinator connects to itself through it, and checks that it answers."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import find_way
from thinwire_coordinator.access.reachability import Reach, advice, classify
from thinwire_proto.errors import ConfigError

log = logging.getLogger("thinwire.coordinator")


@dataclass(frozen=True)
class Found:
    """What the check found. problem: why the coordinator did not reach itself; empty if it did."""

    reach: Reach
    problem: str


async def check_address(address: str, fingerprint: bytes, *, public_tls: bool) -> Found:
    """Look up and try HOST:PORT, which is in invites. fingerprint: of the coordinator's key."""
    host, port = split_address(address)
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        infos = []
    reach = classify([str(info[4][0]) for info in infos])
    try:
        await find_way(host, port, fingerprint, public_tls=public_tls)
    except (Unreachable, ConfigError) as error:
        return Found(reach, str(error))
    return Found(reach, "")


async def tell_reachability(address: str, port: int, fingerprint: bytes, *, public_tls: bool) -> None:
    """Log who can reach the address in invites, and what to do. port: on which the coordinator listens."""
    found = await check_address(address, fingerprint, public_tls=public_tls)
    outcome = f"the coordinator does not reach itself there: {found.problem}" if found.problem else "tried, it answers"
    text = f"invites lead to {address}, which reaches {found.reach.value} ({outcome})"
    lines = advice(found.reach, address, port, reached=not found.problem)
    level = logging.WARNING if found.problem else logging.INFO
    tell(
        log,
        level,
        "coordinator.reachable",
        "\n".join([text, *(f"    {line}" for line in lines)]),
        address=address,
        reach=found.reach.name.lower(),
        reason=found.problem,
    )
