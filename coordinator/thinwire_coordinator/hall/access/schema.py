"""The tables of access.sqlite, and the migrations from older versions. A new version appends one to `MIGRATIONS`."""

from __future__ import annotations

import sqlite3
from itertools import chain

from thinwire_common.migrations import upgrade
from thinwire_proto.errors import ConfigError
from thinwire_proto.version import VERSION

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE invites (
            number INTEGER PRIMARY KEY AUTOINCREMENT, token_hash BLOB NOT NULL UNIQUE, name TEXT NOT NULL,
            uses INTEGER NOT NULL DEFAULT 0, uses_max INTEGER, per_address_max INTEGER,
            made REAL NOT NULL, expires REAL, revoked REAL
        ) STRICT""",
        """CREATE TABLE nodes (
            node TEXT PRIMARY KEY, public_key BLOB NOT NULL, name TEXT NOT NULL, invite INTEGER NOT NULL,
            enrolled REAL NOT NULL, enrolled_from TEXT NOT NULL, seen REAL NOT NULL, address TEXT NOT NULL
        ) STRICT""",
        "CREATE INDEX nodes_by_invite ON nodes (invite, enrolled_from, enrolled)",
        "CREATE INDEX nodes_by_seen ON nodes (seen)",
        """CREATE TABLE bans (
            node TEXT PRIMARY KEY, since REAL NOT NULL, until REAL, reason TEXT NOT NULL, by TEXT NOT NULL,
            count INTEGER NOT NULL
        ) STRICT""",
        """CREATE TABLE decisions (
            number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, node TEXT NOT NULL, what TEXT NOT NULL,
            reason TEXT NOT NULL, by TEXT NOT NULL
        ) STRICT""",
        "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    ),
    (
        """CREATE TABLE standings (
            number INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL UNIQUE, packed TEXT NOT NULL
        ) STRICT""",
    ),
)
"""MIGRATIONS[v] leads from version v to v + 1; version 0 is an empty file."""


def prepare(db: sqlite3.Connection, name: str) -> None:
    """Create the tables, or upgrade them. Raises ConfigError if the file is newer than this program.

    The connection must be in autocommit mode. name: the file's name in that error.
    """
    version = upgrade(db, len(MIGRATIONS), lambda found: chain.from_iterable(MIGRATIONS[found:]))
    if version > len(MIGRATIONS):
        raise ConfigError(
            f"{name} has schema version {version}; this is thinwire {VERSION}, which supports schema versions up to "
            f"{len(MIGRATIONS)}; update thinwire"
        )
