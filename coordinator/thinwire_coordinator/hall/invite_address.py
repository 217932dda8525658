"""Makes invites, and publishes the address that they lead to: stores it, logs it, and tries whether it can be reached.

To try it, the coordinator connects to itself through the address, and checks that it answers.
"""

from __future__ import annotations

import logging
import secrets
import shlex
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from thinwire_common.files import replace_synced
from thinwire_common.logs import tell
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.happy_eyeballs import look_up
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import find_way
from thinwire_coordinator.hall.access.addresses import address_for_invites, advice, classify
from thinwire_coordinator.hall.access.invites import InviteRecord
from thinwire_coordinator.hall.access.settings import ADDRESS, PUBLIC_TLS
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import TOKEN_BYTES, Invite, parse_invite
from thinwire_proto.identity.keys import KEY_FILE, open_key

log = logging.getLogger("thinwire.coordinator")


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
    log.info("%s", f"invites lead to {address}; make one: {make}")
    return tell_reachability(address, port, fingerprint, public_tls=public_tls)


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
    """Look up and try the address in invites, and log who can reach it and what to do. port: on which the coordinator
    listens. fingerprint: of its key."""
    host, its_port = split_address(address)
    infos, problem = [], ""
    with suppress(OSError):
        infos = await look_up(host, its_port)
    reach = classify([str(info[4][0]) for info in infos])
    try:
        await find_way(host, its_port, fingerprint, public_tls=public_tls)
    except (Unreachable, ConfigError) as error:
        problem = str(error)
    outcome = f"the coordinator does not reach itself there: {problem}" if problem else "tried, it answers"
    text = f"invites lead to {address}, which reaches {reach.value} ({outcome})"
    lines = advice(reach, address, port, reached=not problem)
    level = logging.WARNING if problem else logging.INFO
    tell(
        log,
        level,
        "coordinator.reachable",
        "\n".join([text, *(f"    {line}" for line in lines)]),
        address=address,
        reach=reach.name.lower(),
        reason=problem,
    )


def make_invite(
    store: AccessStore,
    folder: Path,
    now: float,
    *,
    name: str = "",
    address: str | None = None,
    uses_max: int | None = None,
    per_address_max: int | None = None,
    expires: float | None = None,
) -> tuple[InviteRecord, Invite]:
    """Make an invite; see `InviteRecord`. address: HOST:PORT; None takes the one that the coordinator has stored."""
    address = address or store.settings.get(ADDRESS)
    if address is None:
        raise ConfigError("no address of the coordinator is known yet: start it first, or give --address HOST:PORT")
    token = secrets.token_bytes(TOKEN_BYTES)
    record = store.invites.make(
        token, name=name, now=now, uses_max=uses_max, per_address_max=per_address_max, expires=expires
    )
    return record, Invite(address, open_key(folder / KEY_FILE).public.fingerprint, token, _public_tls(store))


def keep_invite_file(path: Path, store: AccessStore, folder: Path, now: float) -> bool:
    """Write an invite for any number of nodes to a file that only its owner can read, for programs.

    A valid invite of this coordinator in the file keeps its token. Returns whether a new token was made. Raises
    ConfigError if the file holds something else than an invite.
    """
    address = store.settings.get(ADDRESS)
    assert address is not None
    key = open_key(folder / KEY_FILE).public
    found = _read(path)
    record = store.invites.of_token(found.token) if found is not None else None
    is_valid = record is not None and record.state(now) == "valid"
    if found is not None and found.fingerprint == key.fingerprint and is_valid:
        invite, is_new = Invite(address, key.fingerprint, found.token, _public_tls(store)), False
    else:
        invite, is_new = make_invite(store, folder, now, name=f"--invite-file {path.name}")[1], True
    if str(invite) != str(found):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_synced(path, f"{invite}\n".encode(), private=True)
        except OSError as error:
            raise ConfigError(f"--invite-file {path}: cannot be written: {error.strerror}; name another file") from None
    return is_new


def _public_tls(store: AccessStore) -> bool:
    return bool(store.settings.get(PUBLIC_TLS))


def _read(path: Path) -> Invite | None:
    """The invite in a file; None if there is no file, or nothing in it."""
    try:
        text = path.read_text(encoding="utf-8")
        return parse_invite(text) if text.strip() else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ConfigError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds something else than an invite"
        raise ConfigError(f"--invite-file {path}: {reason}; name another file, or remove this one") from None
