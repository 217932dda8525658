"""The small tables of a run, which a standby keeps: what has changed since it was last sent, and how it is written.

The rows of the ledger, their signatures and the leases come on their own (`items`). Here is the rest, of both
databases. It is compared in memory row by row, since no table says when a row of it has changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from thinwire_common.sqlite_schema import transaction
from thinwire_coordinator.hall.access.database import FILE as ACCESS
from thinwire_coordinator.hall.ledger.backup import LEDGER
from thinwire_proto.errors import LedgerError, PayloadError
from thinwire_proto.limits import LEDGER_BUSY_S

TABLES = {
    LEDGER: ("terms", "voids", "losses", "names"),
    ACCESS: ("settings", "invites", "nodes", "bans", "decisions", "standings"),
}

Change = Mapping[str, Any]
"""Of one table. whole: nothing else is in it. rows: [rowid, columns…] that are new or different. gone: rowids."""


class TableReader:
    """Reads what has changed in the tables of a state directory since the last call. Any thread may use it, one at a
    time: SQLite crashes the process if a connection is closed while another thread reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, sqlite3.Connection] = {}
        self._versions: dict[str, int] = {}
        self._known: dict[str, dict[int, int]] = {}  # hashes of the rows by rowid, by table

    def changes(self) -> dict[str, Change]:
        """The changes by table; empty if there are none. The first call has all tables whole. Raises LedgerError."""
        found: dict[str, Change] = {}
        for name, tables in TABLES.items():
            if not (path := self._folder / name).exists():
                continue
            try:
                found |= self._changes_in(path, tables)
            except sqlite3.Error as error:
                raise LedgerError(f"{path}: cannot be read: {error}", mend="try again") from None
        return found

    def _changes_in(self, path: Path, tables: tuple[str, ...]) -> dict[str, Change]:
        if (db := self._open.get(path.name)) is None:
            uri = f"{path.absolute().as_uri()}?mode=ro"
            db = self._open[path.name] = sqlite3.connect(uri, uri=True, timeout=LEDGER_BUSY_S, check_same_thread=False)
        (version,) = db.execute("PRAGMA data_version").fetchone()
        if self._versions.get(path.name) == version:
            return {}
        found = {table: change for table in tables if (change := self._change(db, table)) is not None}
        self._versions[path.name] = version
        return found

    def _change(self, db: sqlite3.Connection, table: str) -> Change | None:
        rows = db.execute(f"SELECT rowid, * FROM {table}").fetchall()
        before, now = self._known.get(table), {row[0]: hash(row) for row in rows}
        self._known[table] = now
        if before is None:
            return {"whole": True, "rows": [list(row) for row in rows], "gone": []}
        changed = [list(row) for row in rows if before.get(row[0]) != now[row[0]]]
        gone = list(before.keys() - now.keys())
        return {"whole": False, "rows": changed, "gone": gone} if changed or gone else None

    def close(self) -> None:
        for db in self._open.values():
            with suppress(sqlite3.Error):
                db.close()


def write_changes(folder: Path, changes: Mapping[str, Change]) -> None:
    """Write changes into the databases of a state directory, those of one database at once. They are on disk on return.
    Raises PayloadError if they are not changes of these tables, or LedgerError."""
    for name, tables in TABLES.items():
        if not (mine := {table: changes[table] for table in tables if table in changes}):
            continue
        db = sqlite3.connect(folder / name, timeout=LEDGER_BUSY_S, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous=FULL")
            with transaction(db):
                for table, change in mine.items():
                    _write(db, table, change)
        except sqlite3.Error as error:
            raise LedgerError(f"{folder / name}: cannot be written: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise PayloadError(f"the changes of {name} cannot be read: {error!r}") from None
        finally:
            db.close()


def _write(db: sqlite3.Connection, table: str, change: Change) -> None:
    described = db.execute(f"PRAGMA table_info({table})").fetchall()
    keys = [column for column in described if column[5]]
    rowid_is_column = len(keys) == 1 and keys[0][2].upper() == "INTEGER"
    columns = [f'"{column[1]}"' for column in described]
    if not rowid_is_column:
        columns.insert(0, "rowid")
    if change["whole"]:
        db.execute(f"DELETE FROM {table}")
    db.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(rowid,) for rowid in change["gone"]])
    places = ", ".join("?" * len(columns))
    values = [row[1:] if rowid_is_column else row for row in change["rows"]]
    db.executemany(f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({places})", values)
