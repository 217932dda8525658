"""The ledger: rows in SQLite (WAL, synchronous=FULL). A row is written only after its body is on disk (`bodies`).

All calls block, so worker threads make them. Each thread has its own connection (`sibling`). Only the newest term
writes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from thinwire_common.sqlite_errors import is_locked, mend
from thinwire_common.sqlite_schema import create_tables, transaction
from thinwire_coordinator.hall.leases import Leases
from thinwire_coordinator.hall.ledger.schema import SCHEMA, SCHEMA_VERSION
from thinwire_coordinator.hall.ledger.signatures import RowSignatures, Signatures
from thinwire_coordinator.hall.measurement import MeasuredBy
from thinwire_proto import limits
from thinwire_proto.errors import ContractError, Damaged, LedgerError, Locked
from thinwire_proto.exact.amendments import ROW_KEY, amendments_in
from thinwire_proto.identity.terms import promotions
from thinwire_proto.wire.rows import Counted, Row, pack_extras, unpack_extras

COLUMNS = (
    *("step", "round", "term", "nonce", "fingerprint", "body_hash", "body_bytes", "counted", "previous", "hash"),
    "extras",
)
"""The columns of the table `rows` that make up a row; the column `signature` is beside it."""


@dataclass(frozen=True)
class Term:
    """One life of the coordinator process."""

    number: int
    first_round: int


@dataclass(frozen=True)
class Recorded:
    """The status of the whole run, from the ledger.

    first, newest: (step, held-out loss) by the name of the set, for each set that was measured.
    """

    first: Mapping[str, tuple[int, float]]
    newest: Mapping[str, tuple[int, float]]
    rounds_void: int


class Ledger:
    """Opens or creates the database at `path`. Raises LedgerError if it is not a ledger, broken, or of another version.

    read_only: the folder may be one in which nobody can write, such as a mounted backup.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        self.signatures = Signatures(self._execute, self._transaction)
        self._turn = threading.RLock()
        """Held while one of the sibling connections writes.

        SQLite's own lock gives up after LEDGER_BUSY_S, and a disk may stall for longer than that.
        """
        self._voids: list[tuple[int, int, int, str]] = []
        """(first round, last round, term, reason) of void rounds that are not on disk, because another program held the
        lock. There is rarely more than one: consecutive ones share an entry, and every row writes them."""
        try:
            if read_only and not os.access(path.parent, os.W_OK):
                self._db = _connect_without_writing(path)
            else:
                self._db = _connect(str(path))
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            create_tables(self._db, str(path), SCHEMA_VERSION, SCHEMA, LedgerError)
        except sqlite3.DatabaseError as error:
            raise self._failure(f"cannot open {path} as a ledger", error) from None

    def _execute(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(sql, values)
        except sqlite3.IntegrityError as error:
            raise LedgerError(f"{self._path}: the record exists already: {error}") from None
        except sqlite3.Error as error:
            raise self._failure(f"cannot read or write {self._path}", error) from None

    def _failure(self, what: str, error: sqlite3.Error) -> LedgerError:
        """Convert an SQLite error: a plain DatabaseError means a damaged or foreign file, a subclass a lock or a disk
        that fails."""
        text, advice = f"{what}: {error}", mend(self._path, error)
        if type(error) is sqlite3.DatabaseError:
            return Damaged(text, restore="it")
        return Locked(f"{text}; {advice}") if is_locked(error) else LedgerError(text, mend=advice)

    def sibling(self) -> Ledger:
        """Open another connection to the same file, for another thread."""
        sibling = Ledger(self._path, read_only=self._read_only)
        sibling._turn = self._turn
        return sibling

    def close(self) -> None:
        self._db.close()

    def begin_term(self, least: int = 0) -> Term:
        """Begin a new term. Its rounds continue after the last recorded one; down time creates no rounds.

        least: the first term after a promotion."""
        (last,) = self._execute(
            "SELECT max(coalesce((SELECT max(round) FROM rows), -1), coalesce((SELECT max(last_round) FROM voids), -1))"
        ).fetchone()
        (newest,) = self._execute("SELECT coalesce(max(term), 0) FROM terms").fetchone()
        term = max(newest + 1, least)
        if promotions(term) > max(promotions(newest), promotions(least)):
            raise LedgerError("a term has no number left below that of a promotion", mend="promote this machine")
        self._execute("INSERT INTO terms (term, first_round) VALUES (?, ?)", (term, last + 1))
        return Term(term, last + 1)

    def terms(self) -> list[tuple[int, int]]:
        """All terms, each with its first round."""
        return list(self._execute("SELECT term, first_round FROM terms ORDER BY term"))

    def append(
        self, row: Row, signatures: RowSignatures, leases: bytes | None = None, forget: Iterable[str] = ()
    ) -> None:
        """Seal a row, with its signatures and the leases after its contributions are settled: all on disk on return.

        forget: keys of parts of the directory that the row has now."""
        fields = (
            row.step,
            row.round,
            row.term,
            row.nonce.to_bytes(8, "big"),
            row.fingerprint.to_bytes(8, "big"),
            row.body_hash,
            row.body_bytes,
            msgpack.packb([[c.node, c.contribution, c.weight, c.samples] for c in row.counted], use_bin_type=True),
            row.previous,
            row.hash,
            pack_extras(row.extras),
        )
        with self._transaction():
            self._write_voids()
            placeholders = ", ".join("?" * len(COLUMNS))
            self._execute(f"INSERT INTO rows ({', '.join(COLUMNS)}) VALUES ({placeholders})", fields)
            self.signatures.record(row.step, row.counted, signatures)
            if leases is not None:
                self.record_leases(leases)
            for key in forget:
                self._execute("DELETE FROM directory WHERE key = ?", (key,))
        self._voids.clear()

    def record_leases(self, packed: bytes) -> None:
        """Write the output of `Leases.packed`. A grant must be on disk before it is announced."""
        with self._turn:
            self._execute("INSERT OR REPLACE INTO leases (only, packed) VALUES (0, ?)", (packed,))

    def record_directory(self, leases: bytes, parts: Mapping[str, bytes]) -> None:
        """Write leases, and parts of the directory by key, together. What is announced must be on disk before."""
        with self._transaction():
            self.record_leases(leases)
            for part in parts.items():
                self._execute("INSERT OR REPLACE INTO directory (key, packed) VALUES (?, ?)", part)

    def directory(self, key: str) -> Any:
        """A part of the directory as last recorded, unpacked; None if there is none. Raises Damaged."""
        found = self._execute("SELECT packed FROM directory WHERE key = ?", (key,)).fetchone()
        return self._unpacked(found[0]) if found else None

    def directory_parts(self, prefix: str) -> list[Any]:
        """The parts whose keys begin so, unpacked, in the order in which they were recorded. Raises Damaged."""
        select = "SELECT packed FROM directory WHERE substr(key, 1, ?) = ? ORDER BY rowid"
        return [self._unpacked(packed) for (packed,) in self._execute(select, (len(prefix), prefix))]

    def _unpacked(self, packed: bytes) -> Any:
        try:
            return msgpack.unpackb(packed, raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise Damaged(f"{self._path}: cannot read the directory on disk: {error}") from None

    def record_void(self, term: int, round_number: int, reason: str) -> None:
        """Record a void round. Consecutive void rounds share one record with the newest reason.

        While another program holds the ledger's lock, it is kept for the next record or row.
        """
        with self._turn:
            longer = self._voids and self._voids[-1][1:3] == (round_number - 1, term)
            first = self._voids.pop()[0] if longer else round_number
            self._voids.append((first, round_number, term, reason))
            with suppress(Locked):
                with self._transaction():
                    self._write_voids()
                self._voids.clear()

    def _write_voids(self) -> None:
        for first, last, term, reason in self._voids:
            longer = self._execute(
                "UPDATE voids SET last_round = ?, reason = ? WHERE term = ? AND last_round = ?",
                (last, reason, term, first - 1),
            )
            if longer.rowcount == 0:
                insert = "INSERT INTO voids (first_round, last_round, term, reason) VALUES (?, ?, ?, ?)"
                self._execute(insert, (first, last, term, reason))

    def record_loss(self, step: int, name: str, loss: float, measured_by: MeasuredBy) -> None:
        """Record the loss on the held-out set `name`."""
        insert = "INSERT OR REPLACE INTO losses (name, step, loss, measured_by) VALUES (?, ?, ?, ?)"
        with self._turn:
            self._execute(insert, (name, step, loss, measured_by))

    def granted(self) -> tuple[bytes | None, dict[str, bytes]]:
        """What `record_directory` has written: the leases, if there are any, and the parts of the directory by key."""
        found = self._execute("SELECT packed FROM leases").fetchone()
        return (found[0] if found else None), dict(self._execute("SELECT key, packed FROM directory").fetchall())

    @property
    def step(self) -> int:
        """The number of sealed updates."""
        return int(self._execute("SELECT count(*) FROM rows").fetchone()[0])

    def leases(self) -> Leases:
        """The leases as last recorded. Raises LedgerError."""
        found = self._execute("SELECT packed FROM leases").fetchone()
        try:
            return Leases.from_plain(msgpack.unpackb(found[0], raw=False)) if found else Leases()
        except (ValueError, msgpack.UnpackException) as error:
            raise Damaged(f"{self._path}: cannot read the leases on disk: {error}") from None

    @property
    def rounds_void(self) -> int:
        return int(self._execute("SELECT coalesce(sum(last_round - first_round + 1), 0) FROM voids").fetchone()[0])

    def losses(self, name: str) -> list[tuple[int, float]]:
        """The losses on the held-out set `name` by step, oldest first."""
        return list(self._execute("SELECT step, loss FROM losses WHERE name = ? ORDER BY step", (name,)))

    def recorded(self) -> Recorded:
        first = self._execute("SELECT name, min(step), loss FROM losses GROUP BY name")
        newest = self._execute("SELECT name, max(step), loss FROM losses GROUP BY name")
        first_by_name = {name: (step, loss) for name, step, loss in first}
        newest_by_name = {name: (step, loss) for name, step, loss in newest}
        return Recorded(first_by_name, newest_by_name, self.rounds_void)

    def voids_before(self, term: int, limit: int) -> tuple[int, list[tuple[int, int, str]]]:
        """Void rounds of earlier terms: their number, and the newest `limit` records of them, oldest first.

        A record is (first round, last round, reason).
        """
        (total,) = self._execute(
            "SELECT coalesce(sum(last_round - first_round + 1), 0) FROM voids WHERE term < ?", (term,)
        ).fetchone()
        query = "SELECT first_round, last_round, reason FROM voids WHERE term < ? ORDER BY rowid DESC LIMIT ?"
        return int(total), list(self._execute(query, (term, limit)))[::-1]

    def record_names(self, names: dict[str, str]) -> None:
        with self._transaction():
            for pair in names.items():
                self._execute("INSERT OR REPLACE INTO names (node, name) VALUES (?, ?)", pair)

    def names(self, limit: int) -> dict[str, str]:
        """The newest `limit` recorded names by node id, oldest first."""
        query = "SELECT node, name FROM names ORDER BY rowid DESC LIMIT ?"
        return dict(self._execute(query, (limit,)).fetchall()[::-1])

    def counted_at(self, start: int, stop: int) -> list[tuple[int, int, list[tuple[str, int]]]]:
        """For each step in [start, stop): the step, the bytes of its update, and its nodes with their samples.

        This is for display. It checks no hashes, so that it stays cheap.
        """
        query = "SELECT step, body_bytes, counted FROM rows WHERE step >= ? AND step < ? ORDER BY step"
        # all at once: a cursor that stays open would hold its connection to the ledger as it is now
        try:
            found = self._execute(query, (start, stop)).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._failure(f"cannot read {self._path}", error) from None
        return [(step, body_bytes, _samples_by_node(step, packed)) for step, body_bytes, packed in found]

    def counted_of(self, contributions: Iterable[bytes]) -> int:
        """Count those of these contributions that are in an update."""
        return sum(self.step_of_contribution(contribution) is not None for contribution in contributions)

    def step_of_contribution(self, contribution: bytes) -> int | None:
        """The step whose update includes a contribution, or None."""
        found = self._execute("SELECT step FROM contributions WHERE hash = ?", (contribution,)).fetchone()
        return int(found[0]) if found else None

    def amendments(self) -> list[bytes]:
        """The amendments of the run, as they were written, oldest first. Raises Damaged."""
        query = "SELECT step, extras FROM rows WHERE instr(extras, CAST(? AS BLOB)) > 0 ORDER BY step"
        found: list[bytes] = []
        for step, packed in self._execute(query, (ROW_KEY,)).fetchall():
            try:
                found += amendments_in(unpack_extras(packed))
            except (ValueError, msgpack.UnpackException, ContractError) as error:
                raise Damaged(f"step {step}: {error}", step) from None
        return found

    def body_bytes_since(self, step: int) -> int:
        """Total size of the bodies of the updates from `step` on."""
        found = self._execute("SELECT coalesce(sum(body_bytes), 0) FROM rows WHERE step >= ?", (step,))
        return int(found.fetchone()[0])

    def row(self, step: int) -> Row:
        """The row of a step. Raises LedgerError if it is missing or does not match its sealed hash."""
        for row in self.rows(step, step + 1):
            return row
        raise Damaged(f"step {step}: the row is missing", step)

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Rows in order, each checked against its own hash. The caller checks the chain between them."""
        query = f"SELECT {', '.join(COLUMNS)} FROM rows WHERE step >= ? AND step < ? ORDER BY step"
        cursor = self._execute(query, (start, stop if stop is not None else 1 << 62))
        try:
            for fields in cursor:
                yield _row(dict(zip(COLUMNS, fields, strict=True)))
        except sqlite3.DatabaseError as error:
            raise self._failure(f"cannot read {self._path}", error) from None
        finally:
            with suppress(sqlite3.ProgrammingError):  # the ledger may be closed already
                cursor.close()  # an open one would hold its connection to the ledger as it is now

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a block as one transaction; outside of it, the connection is in autocommit mode."""
        with self._turn:
            try:
                with transaction(self._db):
                    yield
            except sqlite3.Error as error:
                raise self._failure(f"cannot read or write {self._path}", error) from None


def _connect(name: str, *, is_uri: bool = False) -> sqlite3.Connection:
    # one thread at a time uses the connection, but not always the thread that opened it
    return sqlite3.connect(
        name, timeout=limits.LEDGER_BUSY_S, isolation_level=None, check_same_thread=False, uri=is_uri
    )


def _connect_without_writing(path: Path) -> sqlite3.Connection:
    """Open a ledger in a folder where this process cannot write.

    SQLite writes files beside a database in WAL mode, unless whoever runs the coordinator has them open, or unless
    SQLite is told that nobody changes the database. The latter is wrong while a log of changes is beside it: raises
    LedgerError if that cannot be read.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not path.with_name(f"{path.name}-wal").exists():
        return _connect(f"{uri}&immutable=1", is_uri=True)
    db = _connect(uri, is_uri=True)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        raise LedgerError(
            f"{path} was not closed, and its log of changes cannot be read where nobody can write; copy {path.parent} "
            "to where you can"
        ) from None
    return db


def _samples_by_node(step: int, packed: bytes) -> list[tuple[str, int]]:
    """The nodes of a row's `counted` column, with their samples. Raises LedgerError."""
    try:
        return [(node, samples) for node, _, _, samples in msgpack.unpackb(packed, raw=False)]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"step {step}: the row cannot be read: {error}", step) from None


def _row(columns: dict[str, Any]) -> Row:
    """Build a row from its columns. Raises LedgerError if it does not match its sealed hash."""
    step = columns["step"]
    try:
        row = Row(
            step=step,
            round=columns["round"],
            term=columns["term"],
            nonce=int.from_bytes(columns["nonce"], "big"),
            fingerprint=int.from_bytes(columns["fingerprint"], "big"),
            body_hash=columns["body_hash"],
            body_bytes=columns["body_bytes"],
            counted=tuple(Counted(*entry) for entry in msgpack.unpackb(columns["counted"], raw=False)),
            previous=columns["previous"],
            extras=unpack_extras(columns["extras"]),
        )
        found = row.hash
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"step {step}: cannot read the row: {error}", step) from None
    if found != columns["hash"]:
        raise Damaged(f"step {step}: the row does not match its sealed hash", step)
    return row
