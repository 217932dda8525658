"""Makes the strings of invites, from the coordinator's key and the address where nodes find it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from thinwire_coordinator.hall.access.invites import InviteRecord
from thinwire_coordinator.hall.access.store import ADDRESS, PUBLIC_TLS, AccessStore
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import TOKEN_BYTES, Invite, parse_invite
from thinwire_proto.identity.keys import KEY_FILE, open_key


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
    kept = found is not None and found.fingerprint == key.fingerprint and record is not None
    if found is not None and kept and record is not None and record.state(now) == "valid":
        invite = Invite(address, key.fingerprint, found.token, _public_tls(store))
    else:
        _, invite = make_invite(store, folder, now, name=f"--invite-file {path.name}")
        kept = False
    if str(invite) != (str(found) if found is not None else None):
        _write(path, f"{invite}\n")
    return not kept


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


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"--invite-file {path}: cannot be written: {error.strerror}; name another file") from None
