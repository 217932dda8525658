"""Publishes the address that invites lead to: stores it, logs it, and tries whether it can be reached.

To try it, the coordinator connects to itself through the address, and checks that it answers.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from thinwire_common.logs import tell
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.name_lookup import look_up
from thinwire_common.reach.preflight import find_way
from thinwire_coordinator.hall.access.addresses import Reach, address_for_invites, advice, classify
from thinwire_coordinator.hall.access.invite_strings import keep_invite_file
from thinwire_coordinator.hall.access.store import ADDRESS, PUBLIC_TLS, AccessStore
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_proto.errors import ConfigError

log = logging.getLogger("thinwire.coordinator")


@dataclass(frozen=True)
class Found:
    """The result of the check. problem: why the coordinator did not reach itself; empty if it did."""

    reach: Reach
    problem: str


def publish_address(
    settings: CoordinatorSettings, access: AccessStore, port: int, fingerprint: bytes, *, public_tls: bool
) -> Coroutine[Any, Any, None]:
    """Store the address for invites, write the file with one, and log the address. Raises ConfigError.

    port: on which the coordinator listens. fingerprint: of its key. Returns a check of the address, to be awaited.
    """
    address = settings.address or address_for_invites(settings.listen, port)
    access.settings.put(ADDRESS, address)
    access.settings.put(PUBLIC_TLS, "1" if public_tls else "")
    if settings.invite_file is not None:
        keep_invite_file(settings.invite_file, access, settings.state_dir, time.time())
    make = shlex.join(["thinwire-coordinator", "invite", "--state-dir", str(settings.state_dir)])
    tell(log, logging.INFO, "coordinator.invites", f"invites lead to {address}; make one: {make}", address=address)
    return tell_reachability(address, port, fingerprint, public_tls=public_tls)


async def check_address(address: str, fingerprint: bytes, *, public_tls: bool) -> Found:
    """Look up and try HOST:PORT, which is in invites. fingerprint: of the coordinator's key."""
    host, port = split_address(address)
    try:
        infos = await look_up(host, port)
    except OSError:
        infos = []
    reach = classify([str(info[4][0]) for info in infos])
    try:
        await find_way(host, port, fingerprint, public_tls=public_tls)
    except (Unreachable, ConfigError) as error:
        return Found(reach, str(error))
    return Found(reach, "")


def tell_proxy(*, forwards: bool) -> None:
    """Log whether each node has its own limits by address, or all share those of the proxy. forwards: `TlsSettings`."""
    text = "limits by address hold for the addresses that the proxy adds to X-Forwarded-For"
    if not forwards:
        text = (
            "all nodes have the proxy's address, and share the limits of one address; if the proxy adds the client's "
            "address to X-Forwarded-For, say so: --tls-proxy-forwards"
        )
    tell(log, logging.INFO, "coordinator.proxy", text, forwards=forwards)


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
