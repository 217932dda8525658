"""The ledger's tables, the schema version, and the migrations from older versions.

A new version appends a tuple of statements to `MIGRATIONS` and changes `SCHEMA` to their result; a test compares the
two. `thinwire_common.migrations` says how they are applied.

Only the coordinator changes a ledger. A command that only reads migrates a copy, because an older coordinator may be
running on the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from itertools import chain

from thinwire_common.migrations import upgrade, version_of
from thinwire_proto.errors import LedgerError
from thinwire_proto.version import VERSION

REQUIRES = "0.3.0"
"""The first thinwire version with the newest schema. The ledger stores it, so that older versions can name it."""

LOSSES = """CREATE TABLE losses (
        name TEXT NOT NULL, step INTEGER NOT NULL, loss REAL NOT NULL, measured_by TEXT NOT NULL,
        PRIMARY KEY (name, step)
    ) STRICT"""
"""Held-out losses by the name of the set. measured_by: see `MeasuredBy`."""
PUBLIC_KEYS = "CREATE TABLE public_keys (node TEXT PRIMARY KEY, key BLOB NOT NULL) STRICT"
"""The public keys of the nodes with counted contributions, by node id."""
DIRECTORY = "CREATE TABLE directory (key TEXT PRIMARY KEY, packed BLOB NOT NULL) STRICT"
"""Of a run without a centre: its topology and the places of its nodes, as last recorded."""
SCHEMA = (
    """CREATE TABLE rows (
        step INTEGER PRIMARY KEY, round INTEGER NOT NULL, term INTEGER NOT NULL, nonce BLOB NOT NULL,
        fingerprint BLOB NOT NULL, body_hash BLOB NOT NULL, body_bytes INTEGER NOT NULL, counted BLOB NOT NULL,
        previous BLOB NOT NULL, hash BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 1,
        extras BLOB NOT NULL DEFAULT x'80', signature BLOB
    ) STRICT""",
    "CREATE TABLE contributions (hash BLOB PRIMARY KEY, step INTEGER NOT NULL, signature BLOB) STRICT",
    """CREATE TABLE voids (
        first_round INTEGER NOT NULL, last_round INTEGER NOT NULL, term INTEGER NOT NULL, reason TEXT NOT NULL
    ) STRICT""",
    "CREATE TABLE terms (term INTEGER PRIMARY KEY, first_round INTEGER NOT NULL) STRICT",
    LOSSES,
    "CREATE TABLE names (node TEXT PRIMARY KEY, name TEXT NOT NULL) STRICT",
    "CREATE TABLE leases (only INTEGER PRIMARY KEY CHECK (only = 0), packed BLOB NOT NULL) STRICT",
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    PUBLIC_KEYS,
    DIRECTORY,
)
"""Schema version 4. `rows.version` and `rows.extras` belong to the row format; x'80' is an empty msgpack map. The
signatures are beside the rows, not in them: rows travel to all nodes. `signatures` says which of them may be missing.
"""

SCHEMA_0 = (
    """CREATE TABLE IF NOT EXISTS rows (
        step INTEGER PRIMARY KEY, round INTEGER NOT NULL, epoch INTEGER NOT NULL, nonce BLOB NOT NULL,
        fingerprint BLOB NOT NULL, body_hash BLOB NOT NULL, body_bytes INTEGER NOT NULL, counted BLOB NOT NULL,
        previous BLOB NOT NULL, hash BLOB NOT NULL
    ) STRICT""",
    "CREATE TABLE IF NOT EXISTS contributions (hash BLOB PRIMARY KEY, step INTEGER NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS voids (
        first_round INTEGER NOT NULL, last_round INTEGER NOT NULL, epoch INTEGER NOT NULL, reason TEXT NOT NULL
    ) STRICT""",
    "CREATE TABLE IF NOT EXISTS epochs (epoch INTEGER PRIMARY KEY, first_round INTEGER NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS losses (step INTEGER PRIMARY KEY, loss REAL NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS names (node TEXT PRIMARY KEY, name TEXT NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS leases (only INTEGER PRIMARY KEY CHECK (only = 0), packed BLOB NOT NULL) STRICT",
)
"""The schema of thinwire 0.1.0. That version may have been killed halfway, so missing tables are created first."""

MIGRATIONS: list[tuple[str, ...]] = [
    (
        *SCHEMA_0,
        "ALTER TABLE epochs RENAME TO terms",
        "ALTER TABLE terms RENAME COLUMN epoch TO term",
        "ALTER TABLE rows RENAME COLUMN epoch TO term",
        "ALTER TABLE rows ADD COLUMN version INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE rows ADD COLUMN extras BLOB NOT NULL DEFAULT x'80'",
        "ALTER TABLE voids RENAME COLUMN epoch TO term",
        "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    ),
    (
        "ALTER TABLE losses RENAME TO losses_1",
        LOSSES,
        "INSERT INTO losses (name, step, loss, measured_by) SELECT '', step, loss, 'coordinator' FROM losses_1",
        "DROP TABLE losses_1",
    ),
    (
        "ALTER TABLE rows ADD COLUMN signature BLOB",
        "ALTER TABLE contributions ADD COLUMN signature BLOB",
        PUBLIC_KEYS,
    ),
    (DIRECTORY,),
]
"""MIGRATIONS[v] leads from version v to v + 1.

Version 1 knew only one held-out set, without a name. Its losses become those of the first set: `Ledger.name_losses`
gives them its name, which only the data know.
"""


def is_old(db: sqlite3.Connection) -> bool:
    """Whether the database holds a ledger of an older version."""
    return version_of(db) < len(MIGRATIONS) and not _is_empty(db)


def prepare(db: sqlite3.Connection, name: str) -> None:
    """Create the tables, or upgrade existing ones to the newest version.

    Raises LedgerError if the ledger is newer than this program. name: the ledger's name in that error. The connection
    must be in autocommit mode.
    """
    if (version := upgrade(db, len(MIGRATIONS), partial(statements, db))) > len(MIGRATIONS):
        needed = db.execute("SELECT value FROM about WHERE key = 'requires'").fetchone()
        needed_version = f"thinwire {needed[0]}" if needed else "a newer thinwire"
        raise LedgerError(
            f"{name} has schema version {version} and needs {needed_version}; this is thinwire {VERSION}, "
            f"which supports schema versions up to {len(MIGRATIONS)}; update thinwire"
        )


def upgraded_copy(db: sqlite3.Connection, name: str) -> sqlite3.Connection:
    """Copy a ledger into a temporary file that SQLite deletes, and upgrade the copy to the newest version."""
    copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    db.backup(copy)
    prepare(copy, name)
    return copy


def statements(db: sqlite3.Connection, version: int) -> Iterator[str]:
    """Those that make the newest schema of an empty database, or of a ledger of an older version."""
    yield from SCHEMA if _is_empty(db) else chain.from_iterable(MIGRATIONS[version:])
    yield f"INSERT OR REPLACE INTO about (key, value) VALUES ('requires', '{REQUIRES}')"


def _is_empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
