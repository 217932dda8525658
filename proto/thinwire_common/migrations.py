"""Transactions of SQLite files, and upgrades of their schema from older versions.

`PRAGMA user_version` holds a file's schema version. All statements of an upgrade run in one transaction, so a killed
process leaves either the old schema or the new one. Connections are in autocommit mode (`isolation_level=None`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run a block as one transaction. An exception undoes it, whether or not SQLite has done so by itself."""
    with db:  # commits or rolls back, if a transaction is open then; on a full disk SQLite may have ended it
        db.execute("BEGIN IMMEDIATE")
        yield


def version_of(db: sqlite3.Connection) -> int:
    """The schema version; 0 for an empty file, and for one of a program that knew no versions."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def upgrade(db: sqlite3.Connection, newest: int, statements: Callable[[int], Iterable[str]]) -> int:
    """Upgrade a file to the newest version, if it is older. Returns the version that it then has, which may be newer.

    statements: those that lead from a version to the newest one; asked inside the transaction.
    """
    if version_of(db) < newest:
        with transaction(db):
            migrate(db, newest, statements)
    return version_of(db)


def migrate(db: sqlite3.Connection, newest: int, statements: Callable[[int], Iterable[str]]) -> None:
    """Upgrade inside a transaction. While this one waited for its lock, another process may have upgraded the file."""
    if (version := version_of(db)) >= newest:
        return
    for statement in statements(version):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {newest}")
