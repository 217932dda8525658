"""The ledger: rows in SQLite (WAL, synchronous=FULL). A row is in it only after its body is on disk (`bodies`).

All calls block, so they are made from worker threads, each of which has a connection of its own (`sibling`). Only the
newest term writes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from thinwire_coordinator.ledger import schema
from thinwire_coordinator.round.leases import Leases
from thinwire_proto import limits
from thinwire_proto.errors import Damaged, LedgerError
from thinwire_proto.wire.rows import Counted, Row, pack_extras, unpack_extras

COLUMNS = (
    *("step", "round", "term", "nonce", "fingerprint", "body_hash", "body_bytes", "counted", "previous", "hash"),
    *("version", "extras"),
)
"""Of the table `rows`."""


@dataclass(frozen=True)
class Term:
    """One life of the coordinator process."""

    number: int
    first_round: int


@dataclass(frozen=True)
class Recorded:
    """What a status tells of the whole run. Losses are held-out ones, with their steps; None if none was measured."""

    first_loss: tuple[int, float] | None
    newest_loss: tuple[int, float] | None
    rounds_void: int


class Ledger:
    """Opens or creates the database at `path`. Raises LedgerError if it is no ledger, broken, or too new.

    read_only: leave a ledger of an older schema as it is, and read an upgraded copy.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._is_copy = False
        self._turn = threading.RLock()
        """Held while one of the sibling connections writes. SQLite's own lock gives up after LEDGER_BUSY_S, and a disk
        may stall for longer than that."""
        try:
            # one thread at a time uses it, but not always the thread that opened it
            self._db = sqlite3.connect(
                path, timeout=limits.LEDGER_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            if read_only and schema.is_old(self._db):
                self._db = schema.upgraded_copy(self._db, str(path))
                self._is_copy = True
            else:
                schema.prepare(self._db, str(path))
        except sqlite3.DatabaseError as error:
            raise _failure(f"{path} cannot be opened as a ledger", error) from None

    def _execute(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(sql, values)
        except sqlite3.IntegrityError as error:
            raise LedgerError(f"{self._path}: {error}: what was to be written is there already") from None
        except sqlite3.Error as error:
            raise _failure(f"{self._path} cannot be read or written", error) from None

    def sibling(self) -> Ledger:
        """Another connection to the same file, for another thread. A copy is for one thread, and has none."""
        if self._is_copy:
            return self
        sibling = Ledger(self._path)
        sibling._turn = self._turn
        return sibling

    def close(self) -> None:
        self._db.close()

    def begin_term(self) -> Term:
        """Record a new life of the coordinator: its rounds begin after the last one recorded; down time makes none."""
        (last,) = self._execute(
            "SELECT max(coalesce((SELECT max(round) FROM rows), -1), coalesce((SELECT max(last_round) FROM voids), -1))"
        ).fetchone()
        (term,) = self._execute("SELECT coalesce(max(term), 0) + 1 FROM terms").fetchone()
        self._execute("INSERT INTO terms (term, first_round) VALUES (?, ?)", (term, last + 1))
        return Term(term, last + 1)

    def append(self, row: Row, leases: bytes | None = None) -> None:
        """Seal a row, and with it the leases as they are when its contributions are settled: on disk when this
        returns."""
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
            row.version,
            pack_extras(row.extras),
        )
        with self._transaction():
            places = ", ".join("?" * len(COLUMNS))
            self._execute(f"INSERT INTO rows ({', '.join(COLUMNS)}) VALUES ({places})", fields)
            for entry in row.counted:
                self._execute("INSERT INTO contributions (hash, step) VALUES (?, ?)", (entry.contribution, row.step))
            if leases is not None:
                self.record_leases(leases)

    def record_leases(self, packed: bytes) -> None:
        """What `Leases.packed` gives: what is granted must be on disk before it is announced."""
        with self._turn:
            self._execute("INSERT OR REPLACE INTO leases (only, packed) VALUES (0, ?)", (packed,))

    def record_void(self, term: int, round_number: int, reason: str) -> None:
        """Voids in a row share one record; it keeps the newest reason."""
        with self._transaction():
            longer = self._execute(
                "UPDATE voids SET last_round = ?, reason = ? WHERE term = ? AND last_round = ?",
                (round_number, reason, term, round_number - 1),
            )
            if longer.rowcount == 0:
                insert = "INSERT INTO voids (first_round, last_round, term, reason) VALUES (?, ?, ?, ?)"
                self._execute(insert, (round_number, round_number, term, reason))

    def record_loss(self, step: int, loss: float) -> None:
        with self._turn:
            self._execute("INSERT OR REPLACE INTO losses (step, loss) VALUES (?, ?)", (step, loss))

    @property
    def step(self) -> int:
        """The number of updates sealed."""
        return int(self._execute("SELECT count(*) FROM rows").fetchone()[0])

    def leases(self) -> Leases:
        """As recorded last. Raises LedgerError."""
        found = self._execute("SELECT packed FROM leases").fetchone()
        try:
            return Leases.from_plain(msgpack.unpackb(found[0], raw=False)) if found else Leases()
        except (ValueError, msgpack.UnpackException) as error:
            raise Damaged(f"{self._path}: the leases on disk cannot be read: {error}") from None

    @property
    def rounds_void(self) -> int:
        return int(self._execute("SELECT coalesce(sum(last_round - first_round + 1), 0) FROM voids").fetchone()[0])

    def losses(self) -> list[tuple[int, float]]:
        """Held-out losses by step, oldest first."""
        return list(self._execute("SELECT step, loss FROM losses ORDER BY step"))

    def recorded(self) -> Recorded:
        first = self._execute("SELECT step, loss FROM losses ORDER BY step LIMIT 1").fetchone()
        newest = self._execute("SELECT step, loss FROM losses ORDER BY step DESC LIMIT 1").fetchone()
        return Recorded(first, newest, self.rounds_void)

    def voids_before(self, term: int, limit: int) -> tuple[int, list[tuple[int, int, str]]]:
        """Of earlier terms: how many rounds were void, and the newest `limit` runs of them, oldest first: the first
        round, the last, and why."""
        (total,) = self._execute(
            "SELECT coalesce(sum(last_round - first_round + 1), 0) FROM voids WHERE term < ?", (term,)
        ).fetchone()
        query = "SELECT first_round, last_round, reason FROM voids WHERE term < ? ORDER BY rowid DESC LIMIT ?"
        return int(total), list(self._execute(query, (term, limit)))[::-1]

    def record_names(self, names: dict[str, str]) -> None:
        """What nodes call themselves, by node id: for people to read."""
        with self._transaction():
            for pair in names.items():
                self._execute("INSERT OR REPLACE INTO names (node, name) VALUES (?, ?)", pair)

    def names(self, limit: int) -> dict[str, str]:
        """Those recorded last, oldest first."""
        query = "SELECT node, name FROM names ORDER BY rowid DESC LIMIT ?"
        return dict(self._execute(query, (limit,)).fetchall()[::-1])

    def counted_at(self, start: int, stop: int) -> list[tuple[int, int, list[tuple[str, int]]]]:
        """For each step from `start` to before `stop`: the step, the bytes of its update, and who counted in it with
        how many samples. To look at: nothing is checked, so that it stays cheap."""
        query = "SELECT step, body_bytes, counted FROM rows WHERE step >= ? AND step < ? ORDER BY step"
        return [
            (step, body_bytes, [(node, samples) for node, _, _, samples in msgpack.unpackb(packed, raw=False)])
            for step, body_bytes, packed in self._execute(query, (start, stop))
        ]

    def counted_of(self, contributions: Iterable[bytes]) -> int:
        """How many of these contributions are in an update."""
        return sum(self.step_of_contribution(contribution) is not None for contribution in contributions)

    def step_of_contribution(self, contribution: bytes) -> int | None:
        """The step whose update holds a contribution, if one does."""
        found = self._execute("SELECT step FROM contributions WHERE hash = ?", (contribution,)).fetchone()
        return int(found[0]) if found else None

    def body_bytes_since(self, step: int) -> int:
        """What the bodies of the updates from `step` on weigh."""
        found = self._execute("SELECT coalesce(sum(body_bytes), 0) FROM rows WHERE step >= ?", (step,))
        return int(found.fetchone()[0])

    def row(self, step: int) -> Row:
        """Raises LedgerError if it is not there or does not have the hash that was sealed."""
        for row in self.rows(step, step + 1):
            return row
        raise Damaged(f"step {step}: its row is missing", step)

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Rows in order, each checked against its own hash; the chain between them is the caller's to check."""
        query = f"SELECT {', '.join(COLUMNS)} FROM rows WHERE step >= ? AND step < ? ORDER BY step"
        try:
            for fields in self._execute(query, (start, stop if stop is not None else 1 << 62)):
                yield _row(dict(zip(COLUMNS, fields, strict=True)))
        except sqlite3.DatabaseError as error:
            raise _failure(f"{self._path} cannot be read", error) from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; the connection is in autocommit mode otherwise."""
        with self._turn:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._execute("ROLLBACK")
                raise
            self._execute("COMMIT")


def _failure(what: str, error: sqlite3.Error) -> LedgerError:
    """What sqlite3 has no kind of its own for is a file that is damaged, or none of its own; the rest is the disk's."""
    if type(error) is sqlite3.DatabaseError:
        return Damaged(f"{what}: {error}", restore="it")
    return LedgerError(f"{what}: {error}")


def _row(columns: dict[str, Any]) -> Row:
    """A row by its columns. Raises LedgerError if it does not have the hash that was sealed."""
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
            version=columns["version"],
            extras=unpack_extras(columns["extras"]),
        )
        found = row.hash
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"step {step}: its row cannot be read: {error}", step) from None
    if found != columns["hash"]:
        raise Damaged(f"step {step}: its row does not have the hash that was sealed", step)
    return row
