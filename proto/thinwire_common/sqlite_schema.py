"""Transactions of SQLite files, and the creation of their tables.

`PRAGMA user_version` holds a file's schema version. All tables are created in one transaction, so a killed process
leaves either none or all. Connections are in autocommit mode (`isolation_level=None`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from thinwire_proto.version import VERSION


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run a block as one transaction. An exception undoes it, whether or not SQLite has done so by itself."""
    with db:  # commits or rolls back, if a transaction is open then; on a full disk SQLite may have ended it
        db.execute("BEGIN IMMEDIATE")
        yield


def create_tables(
    db: sqlite3.Connection, name: str, version: int, statements: Iterable[str], refusal: type[Exception]
) -> None:
    """Create the tables of an empty file. Raises `refusal`, with the file's name, if the file has another schema.

    A file has version 0 if another program made its tables."""
    if _is_empty(db):
        with transaction(db):
            if _is_empty(db):  # another process may have created them while this one waited for the lock
                for statement in statements:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version}")
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    if found != version:
        raise refusal(f"{name} has schema version {found}; this is thinwire {VERSION}, which reads {version}")


def _is_empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
