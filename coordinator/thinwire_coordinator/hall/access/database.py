"""The file access.sqlite: who may take part in the run, apart from the ledger, so that it can be kept from others.

The coordinator and the organizer's commands use the file at the same time, each by short transactions (WAL).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from thinwire_common.sqlite_errors import is_locked, is_refused, mend
from thinwire_common.sqlite_schema import create_tables, transaction
from thinwire_proto.errors import ConfigError, LocalError, Locked
from thinwire_proto.limits import LEDGER_BUSY_S

FILE = "access.sqlite"


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

Record = TypeVar("Record", bound=Any)


class Database:
    """A connection to the file. Raises LocalError if it cannot be opened; it is created if need be.

    Any thread may use it, one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.RLock()
        try:
            path.touch(mode=0o600)  # addresses of volunteers are in it
            path.chmod(0o600)  # a copy that was restored may have another mode; SQLite gives it to its journal too
            self._db = sqlite3.connect(path, timeout=LEDGER_BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            create_tables(self._db, str(path), SCHEMA_VERSION, SCHEMA, ConfigError)
        except (sqlite3.Error, OSError) as error:
            copy = "" if is_locked(error) or is_refused(error) else ", or restore it from a copy"
            raise self._failure("opened", error, copy) from None

    def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement and return all its rows."""
        return self._run(sql, values).fetchall()

    def write(self, sql: str, *values: object) -> int:
        """Run one statement that changes rows. Returns the number of changed rows."""
        return self._run(sql, values).rowcount

    def insert(self, sql: str, *values: object) -> int:
        """Run an INSERT. Returns the number of the new row."""
        return int(self._run(sql, values).lastrowid or 0)

    def records(self, of: type[Record], where: str = "", *values: object) -> list[Record]:
        """The records of a table, `of.table`, whose columns have the names of the fields."""
        return [of(*row) for row in self.execute(f"SELECT {_columns(of)} FROM {of.table} {where}", *values)]

    def put(self, record: Any) -> int:
        """Insert a record into its table, in place of one with the same key. Returns the number of its row."""
        values = [getattr(record, field.name) for field in fields(record)]
        places = ", ".join("?" * len(values))
        sql = f"INSERT OR REPLACE INTO {record.table} ({_columns(type(record))}) VALUES ({places})"
        return self.insert(sql, *values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction. A block within another one belongs to that one."""
        with self._turn:
            if self._db.in_transaction:
                yield
                return
            try:
                with transaction(self._db):
                    yield
            except sqlite3.Error as error:
                raise self._failure("read or written", error) from None

    def close(self) -> None:
        with self._turn:
            self._db.close()

    def _run(self, sql: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        with self._turn:
            try:
                return self._db.execute(sql, values)
            except sqlite3.Error as error:
                raise self._failure("read or written", error) from None

    def _failure(self, what: str, error: Exception, or_else: str = "") -> LocalError:
        text, advice = f"{self.path}: cannot be {what}: {error}", mend(self.path, error)
        return (Locked if is_locked(error) else LocalError)(f"{text}; {advice}{or_else}")


class Table:
    """What asks the database for one table."""

    def __init__(self, database: Database) -> None:
        self._db = database


def _columns(of: type[Any]) -> str:
    return ", ".join(field.name for field in fields(of))
