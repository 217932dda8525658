"""The tables of access.sqlite."""

from __future__ import annotations

import sqlite3

from thinwire_common.sqlite_schema import create_tables
from thinwire_proto.errors import ConfigError
from thinwire_proto.version import VERSION

SCHEMA_VERSION = 2
SCHEMA = (
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
    """CREATE TABLE standings (
        number INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL UNIQUE, packed TEXT NOT NULL
    ) STRICT""",
)


def prepare(db: sqlite3.Connection, name: str) -> None:
    """Create the tables of an empty file. Raises ConfigError if the file has another schema.

    The connection must be in autocommit mode. name: the file's name in that error.
    """
    if (version := create_tables(db, SCHEMA_VERSION, SCHEMA)) != SCHEMA_VERSION:
        raise ConfigError(
            f"{name} has schema version {version}; this is thinwire {VERSION}, which reads {SCHEMA_VERSION}"
        )
