"""Reads an invite that a program was given, as itself or as @FILE.

All users of a machine see the arguments of its programs, so a file is the safer way.
"""

from __future__ import annotations

from pathlib import Path

from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import BREAKS, INVITE_LENGTH_MAX, PREFIX, Invite, parse_invite

FILE_MARK = "@"
FILE_CHARACTERS_MAX = 2 * INVITE_LENGTH_MAX
"""Read of a file with an invite, which may be broken into lines."""


def parse_given_invite(given: str) -> Invite:
    """Read an invite, or @FILE with one. Raises ConfigError."""
    if not given.strip().startswith(FILE_MARK):
        return parse_invite(given)
    path = Path(given.strip().removeprefix(FILE_MARK))
    try:
        with path.open(encoding="utf-8") as file:
            text = BREAKS.sub("", file.read(FILE_CHARACTERS_MAX))
    except (OSError, ValueError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{FILE_MARK}{path}: cannot read the invite: {reason}") from None
    if not text.startswith(PREFIX):
        raise ConfigError(f"{FILE_MARK}{path}: there is no invite in this file; it begins with {PREFIX}")
    return parse_invite(text)
