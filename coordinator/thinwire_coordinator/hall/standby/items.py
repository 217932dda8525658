"""The items of the stream from a coordinator to its standby, as msgpack maps. docs/wire.md describes them.

An item is whole on the standby's disk, or not at all. Whatever is lost on the way is sent again, from where the
standby stands when it follows the next time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from thinwire_common.sqlite_schema import transaction
from thinwire_coordinator.hall.access.database import FILE as ACCESS
from thinwire_coordinator.hall.ledger.backup import LEDGER
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.blobs import Blob
from thinwire_proto.contract.amendment import parse_amendment
from thinwire_proto.contract.data.tokens import HELD_OUT
from thinwire_proto.errors import Damaged, LedgerError, PayloadError
from thinwire_proto.exact.amendments import amendments_in
from thinwire_proto.limits import LEDGER_BUSY_S
from thinwire_proto.wire.rows import Row

ITEM_BYTES_MAX = 1 << 32
"""An update of a contract is bounded by it, and is far smaller; the tables of the largest run have 40 MB."""
SNAPSHOT_PART_BYTES = 1 << 20
VERSION = 1
"""The version of the items. Both machines must have the same."""

Item = Mapping[str, Any]


@dataclass(frozen=True)
class Position:
    """Where a standby stands. address: HOST:PORT for nodes; empty: they are not told. step: rows that it has. head: the
    hash of the newest. snapshot: the step of its newest whole one. begun, begun_bytes: the step of one that it has in
    part, and how much of it. process: random bytes, which tell the processes of standbys apart."""

    address: str
    step: int
    head: bytes
    snapshot: int
    begun: int = 0
    begun_bytes: int = 0
    process: bytes = b""


def pack(item: Item) -> bytes:
    return bytes(msgpack.packb(item, use_bin_type=True))


def unpack(data: bytes) -> Item:
    """Raises PayloadError."""
    try:
        found = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise PayloadError(f"this is no item: {error}") from None
    if not isinstance(found, dict):
        raise PayloadError("this is no item: it is not a map")
    return found


def row_item(state: RunState, ledger: Ledger, step: int, *, is_newest: bool) -> bytes:
    """A sealed row with its signatures and its body. is_newest: with the leases and the directory after it, which hold
    for the newest row alone. Raises LedgerError or OSError."""
    row, signed = ledger.row(step), []
    for entry in row.counted:
        key, signature = ledger.signatures.key_of(entry.node), ledger.signatures.of_contribution(entry.contribution)
        if key is None or signature is None:
            raise Damaged(f"step {step}: a contribution has lost its signature", step)
        signed.append([key.data, signature])
    body = state.bodies.get(row.body_hash, row.body_bytes)
    item: dict[str, Any] = {
        "row": row.canonical(),
        "signature": ledger.signatures.of_row(step),
        "signed": signed,
        "body": body,
    }
    if added := {blob.hash: state.blobs.path(blob).read_bytes() for blob in blobs_in(row)}:
        item["blobs"] = added
    return pack(item | _granted(ledger) if is_newest else item)


def blobs_in(row: Row) -> Iterator[Blob]:
    for amendment in map(parse_amendment, amendments_in(row.extras)):
        for shard in amendment.changes.get(HELD_OUT, {}).values():
            yield Blob(shard["hash"], shard["size"])


def terms_item(ledger: Ledger) -> bytes:
    """All terms, so that a promotion of the standby takes a later one. Raises LedgerError."""
    rows = [[term, term, first_round] for term, first_round in ledger.terms()]
    return pack({"tables": {"terms": {"whole": True, "rows": rows, "gone": []}}})


def leases_item(ledger: Ledger) -> bytes:
    """The leases and the directory. Raises LedgerError."""
    return pack(_granted(ledger))


def _granted(ledger: Ledger) -> dict[str, Any]:
    leases, directory = ledger.granted()
    return {"leases": leases, "directory": directory}


def snapshot_item(path: Path, step: int, offset: int) -> bytes:
    """A part of a snapshot. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(SNAPSHOT_PART_BYTES)
    return pack({"snapshot": step, "offset": offset, "size": path.stat().st_size, "data": data})


TABLES = {
    LEDGER: ("terms", "voids", "losses", "names"),
    ACCESS: ("settings", "invites", "nodes", "bans", "decisions", "standings"),
}

Change = Mapping[str, Any]
"""Of one table. whole: nothing else is in it. rows: [rowid, columns…] that are new or different. gone: rowids."""


class TableReader:
    """Reads what has changed in the small tables of a state directory since the last call.

    The rows of the ledger, their signatures and the leases come on their own. The rest, of both databases, is compared
    in memory row by row, since no table says when a row of it has changed.

    Any thread may use it, one at a time: SQLite crashes the process if a connection is closed while another thread
    reads.
    """

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
