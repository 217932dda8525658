"""Keeps the invite and the node's name in `enrolment.json` of the state directory, for later starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from thinwire_common.files import replace_synced
from thinwire_common.options import host_and_port
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.identity.invite import FILE_MARK, PREFIX, Invite, bare, parse_given_invite, parse_invite

FILE = "enrolment.json"
INVITE_FILE = "invite"
"""The file of a service's invite. Arguments of a program would show it to all users of the machine."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Destination:
    """The coordinator that a node connects to. invite: None: the one on this machine at `address`, in plain text."""

    address: str
    invite: Invite | None = None


@dataclass(frozen=True)
class Enrolment:
    """The contents of `enrolment.json`. name: empty if the volunteer chose none."""

    invite: Invite
    name: str


def read_destination(given: str) -> Destination:
    """Read what the volunteer typed: an invite, @FILE with one, or HOST:PORT on this machine. Raises UsageError."""
    text = given.strip()
    if text.startswith(FILE_MARK) or bare(text).startswith(PREFIX):
        try:
            invite = parse_given_invite(text)
        except ConfigError as error:
            raise UsageError(str(error)) from None
        return Destination(invite.address, invite)
    try:
        host, port = host_and_port(text, port_min=1)
    except ValueError:
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise UsageError(
            f"{shown!r} is neither an invite ({PREFIX}…), nor @FILE with one, nor HOST:PORT on this machine"
        ) from None
    if host not in LOOPBACK:
        raise UsageError(
            f"{text}: an address alone works on this machine only ({LOOPBACK[0]}:{port}), because it does not say whom "
            "to trust; ask the organizer for an invite, and run: thinwire-node start INVITE"
        )
    return Destination(text)


def choose(folder: Path, given: Destination | None) -> Destination:
    """The coordinator of a state directory: the given one, or the one that it belongs to. Raises UsageError, or
    ConfigError if the directory cannot be read."""
    enrolment = _read(folder)
    kept = enrolment.invite if enrolment is not None else None
    if given is None:
        if kept is None:
            raise UsageError(f"{folder}: this node has not enrolled yet; run: thinwire-node start INVITE")
        return Destination(kept.address, kept)
    if kept is None:
        return given
    if given.invite is None or given.invite.fingerprint != kept.fingerprint:
        raise UsageError(
            f"{folder} belongs to the coordinator at {kept.address}, by its key; to take part in another run, or in a "
            "new one of an organizer who has lost that key, give another --state-dir"
        )
    return given


def kept_name(folder: Path) -> str:
    """The name that the node last joined with; empty if it had none. Raises ConfigError."""
    enrolment = _read(folder)
    return enrolment.name if enrolment is not None else ""


def keep(folder: Path, invite: Invite, name: str = "") -> None:
    """Keep an invite and a name that the coordinator has accepted. Only the file's owner can read them.

    A service starts with the invite in `INVITE_FILE`, so an invite to a coordinator that has moved goes there too."""
    if _read(folder) == Enrolment(invite, name):
        return
    if (folder / INVITE_FILE).exists():
        write_invite(folder, invite)
    kept = {"address": invite.address, "invite": str(invite), "name": name}
    replace_synced(folder / FILE, json.dumps(kept).encode(), private=True)


def write_invite(folder: Path, invite: Invite) -> None:
    """Write the file of a service's invite, which only its owner can read."""
    replace_synced(folder / INVITE_FILE, f"{invite}\n".encode(), private=True)


def _read(folder: Path) -> Enrolment | None:
    path = folder / FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Enrolment(parse_invite(kept["invite"]), str(kept.get("name", "")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be used as a state directory: {error.strerror}; give another --state-dir"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError):
        raise ConfigError(f"{path}: cannot be read; remove it, and run: thinwire-node start INVITE") from None
