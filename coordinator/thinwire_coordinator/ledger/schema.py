"""The ledger's tables, their version, and how an older ledger becomes one of this version.

`PRAGMA user_version` holds the schema's version. A new version appends a list of statements to `MIGRATIONS` and changes
`SCHEMA` to what they lead to; a test holds the two to each other. All migrations of a start are one transaction, so a
process that is killed leaves the old schema or the new one.

Only the coordinator changes a ledger. A command that reads migrates a copy: an older coordinator may be running on it.
"""

from __future__ import annotations

import sqlite3

from thinwire_proto.errors import LedgerError
from thinwire_proto.version import VERSION

REQUIRES = "0.2.0"
"""The first thinwire that knows the newest schema; kept in the ledger, for thinwires that do not."""

SCHEMA = (
    """CREATE TABLE rows (
        step INTEGER PRIMARY KEY, round INTEGER NOT NULL, term INTEGER NOT NULL, nonce BLOB NOT NULL,
        fingerprint BLOB NOT NULL, body_hash BLOB NOT NULL, body_bytes INTEGER NOT NULL, counted BLOB NOT NULL,
        previous BLOB NOT NULL, hash BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 1,
        extras BLOB NOT NULL DEFAULT x'80'
    ) STRICT""",
    "CREATE TABLE contributions (hash BLOB PRIMARY KEY, step INTEGER NOT NULL) STRICT",
    """CREATE TABLE voids (
        first_round INTEGER NOT NULL, last_round INTEGER NOT NULL, term INTEGER NOT NULL, reason TEXT NOT NULL
    ) STRICT""",
    "CREATE TABLE terms (term INTEGER PRIMARY KEY, first_round INTEGER NOT NULL) STRICT",
    "CREATE TABLE losses (step INTEGER PRIMARY KEY, loss REAL NOT NULL) STRICT",
    "CREATE TABLE names (node TEXT PRIMARY KEY, name TEXT NOT NULL) STRICT",
    "CREATE TABLE leases (only INTEGER PRIMARY KEY CHECK (only = 0), packed BLOB NOT NULL) STRICT",
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
)
"""Version 1. In `rows`, `version` and `extras` are those of the row's format; x'80' is msgpack's empty map."""

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
"""What thinwire 0.1.0 made. It may have been killed halfway, so what is missing is made first."""

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
]
"""The statements at place v lead from version v to v + 1."""


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def is_old(db: sqlite3.Connection) -> bool:
    """Whether there is a ledger already, of an older version."""
    return version_of(db) < len(MIGRATIONS) and not _is_empty(db)


def prepare(db: sqlite3.Connection, name: str) -> None:
    """Make the tables, or bring those that are there to the newest version. Raises LedgerError if they are newer than
    that. name: of the ledger, for the error. The connection must be in autocommit mode."""
    if version_of(db) < len(MIGRATIONS):
        db.execute("BEGIN IMMEDIATE")
        try:
            _migrate(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
    if (version := version_of(db)) > len(MIGRATIONS):
        needed = db.execute("SELECT value FROM about WHERE key = 'requires'").fetchone()
        raise LedgerError(
            f"{name} has schema version {version}; it needs thinwire {needed[0] if needed else 'of a newer version'}, "
            f"and this is thinwire {VERSION}, which knows versions up to {len(MIGRATIONS)}: update thinwire"
        )


def upgraded_copy(db: sqlite3.Connection, name: str) -> sqlite3.Connection:
    """A private copy of a ledger in the newest version, in a temporary file that SQLite deletes."""
    copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    db.backup(copy)
    prepare(copy, name)
    return copy


def _migrate(db: sqlite3.Connection) -> None:
    """In a transaction, whose lock may have been waited for: another process may have migrated meanwhile."""
    version = version_of(db)
    steps = [SCHEMA] if _is_empty(db) else MIGRATIONS[version:]
    for statements in steps:
        for statement in statements:
            db.execute(statement)
    if steps:
        db.execute("INSERT OR REPLACE INTO about (key, value) VALUES ('requires', ?)", (REQUIRES,))
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _is_empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
