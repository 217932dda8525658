"""Tests of transactions and the creation of tables of SQLite files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from thinwire_common.sqlite_schema import create_tables, transaction

STEPS = ("CREATE TABLE a (x)", "CREATE TABLE b (x)", "CREATE TABLE c (x)")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "file.sqlite", isolation_level=None)) as opened:
        yield opened


def tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]


def test_tables_are_created_once(db: sqlite3.Connection) -> None:
    for _ in range(2):
        create_tables(db, "it", 2, STEPS, ValueError)
        assert tables(db) == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"it has schema version 2; .* which reads 3"):
        create_tables(db, "it", 3, (*STEPS, "CREATE TABLE d (x)"), ValueError)
    assert tables(db) == ["a", "b", "c"]


def test_a_file_of_another_program_is_left_as_it_is(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(ValueError, match="it has schema version 0"):
        create_tables(db, "it", 2, STEPS, ValueError)
    assert tables(db) == ["theirs"]


def test_a_creation_that_fails_leaves_the_file_empty(db: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        create_tables(db, "it", 2, (*STEPS, STEPS[0]), ValueError)
    assert tables(db) == []
    assert not db.in_transaction


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_undoes_a_transaction(db: sqlite3.Connection, error: type[BaseException]) -> None:

    def fails() -> None:
        with transaction(db):
            db.execute(STEPS[0])
            raise error

    with pytest.raises(error):
        fails()
    assert tables(db) == []
    assert not db.in_transaction


def test_a_transaction_that_sqlite_has_undone_itself_tells_why(db: sqlite3.Connection) -> None:
    """As on a full disk: the statement fails, and SQLite has rolled back before anybody could."""
    db.execute("CREATE TABLE a (x, y UNIQUE ON CONFLICT ROLLBACK)")
    db.execute("INSERT INTO a VALUES (1, 1)")

    def insert() -> None:
        with transaction(db):
            db.execute("INSERT INTO a VALUES (2, 2)")
            db.execute("INSERT INTO a VALUES (3, 1)")

    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        insert()
    assert db.execute("SELECT x FROM a").fetchall() == [(1,)]
