"""Tests of the ledger's schema: an old one is upgraded completely or not at all; a newer one is refused."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from thinwire_common.migrations import migrate, version_of
from thinwire_coordinator.hall.ledger import schema
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_proto.errors import LedgerError

GOLDEN = Path(__file__).parents[1] / "golden" / "demo" / "coordinator" / "ledger.sqlite"
DIES_AT = """
import os, signal, sqlite3, sys
from thinwire_coordinator.hall.ledger import schema
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
seen = []
def count(statement):
    seen.append(statement)
    if len(seen) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
db.set_trace_callback(count)
schema.prepare(db, "ledger")
print(len(seen))
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger of thinwire 0.1.0."""
    return Path(shutil.copy(GOLDEN, tmp_path / "ledger.sqlite"))


def connect(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path, isolation_level=None))


def shape(db: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """Each table's columns: name, type, not null, default, index in the primary key."""
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: [column[1:] for column in db.execute(f"PRAGMA table_info({name})")] for name in sorted(names)}


def test_an_old_ledger_has_the_shape_of_a_new_one_after_its_migrations(old: Path, tmp_path: Path) -> None:
    with connect(old) as db, connect(tmp_path / "new.sqlite") as new:
        assert schema.is_old(db)
        assert shape(db) != shape(new)
        schema.prepare(db, "old")
        schema.prepare(new, "new")
        assert shape(db) == shape(new)
        assert version_of(db) == version_of(new) == len(schema.MIGRATIONS)


def test_a_migrated_ledger_keeps_its_content(old: Path) -> None:
    with connect(old) as db:
        before = db.execute("SELECT * FROM rows").fetchall()
        voids, terms = db.execute("SELECT * FROM voids").fetchall(), db.execute("SELECT * FROM epochs").fetchall()
    ledger = Ledger(old)
    assert [row.hash for row in ledger.rows()] == [fields[-1] for fields in before]
    assert {row.version for row in ledger.rows()} == {1}
    assert ledger.begin_term().number == len(terms) + 1
    ledger.close()
    with connect(old) as db:
        assert db.execute("SELECT * FROM voids").fetchall() == voids
        assert db.execute("SELECT term, first_round FROM terms").fetchall()[:-1] == terms


def test_losses_without_a_name_become_those_of_the_first_held_out_set(tmp_path: Path) -> None:
    """Version 1 of the schema, that of thinwire 0.2.0, knew one held-out set."""
    with connect(tmp_path / "l.sqlite") as db:
        for statement in schema.MIGRATIONS[0]:
            db.execute(statement)
        db.execute("PRAGMA user_version = 1")
        db.executemany("INSERT INTO losses VALUES (?, ?)", [(0, 5.5), (20, 4.5)])
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.name_losses("wiki")
    ledger.record_loss(20, "code", 3.0, "nodes")
    ledger.record_loss(40, "wiki", 4.0, "coordinator")
    ledger.name_losses("code")  # finds nothing to name
    assert ledger.losses("wiki") == [(0, 5.5), (20, 4.5), (40, 4.0)]
    recorded = ledger.recorded()
    assert recorded.first == {"wiki": (0, 5.5), "code": (20, 3.0)}
    assert recorded.newest == {"wiki": (40, 4.0), "code": (20, 3.0)}
    ledger.close()
    with connect(tmp_path / "l.sqlite") as db:
        by = db.execute("SELECT name, measured_by FROM losses ORDER BY step, name").fetchall()
    assert by == [("wiki", "coordinator"), ("code", "nodes"), ("wiki", "coordinator"), ("wiki", "coordinator")]


def test_an_unfinished_ledger_of_0_1_0_is_completed(tmp_path: Path) -> None:
    with connect(tmp_path / "l.sqlite") as db:
        db.execute(schema.SCHEMA_0[0])
        schema.prepare(db, "l")
        fresh = sqlite3.connect(":memory:", isolation_level=None)
        schema.prepare(fresh, "fresh")
        assert shape(db) == shape(fresh)


def test_a_migration_survives_kill_9_at_each_of_its_statements(old: Path, tmp_path: Path) -> None:
    """A real process is killed. It leaves the complete old schema, and the next start migrates it."""

    def run(path: Path, dies_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", DIES_AT, str(path), str(dies_at)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    whole = run(Path(shutil.copy(old, tmp_path / "whole.sqlite")), 0)
    assert whole.returncode == 0, whole.stderr
    statements = int(whole.stdout)
    assert statements > 15
    for dies_at in (4, statements // 2, statements - 3, statements - 1):
        path = Path(shutil.copy(old, tmp_path / f"{dies_at}.sqlite"))
        assert run(path, dies_at).returncode == -signal.SIGKILL
        with connect(path) as db:
            assert version_of(db) == 0
            assert db.execute("SELECT max(epoch) FROM epochs").fetchone() == (2,)
        ledger = Ledger(path)
        assert ledger.step == 14
        ledger.close()


def test_a_reader_does_not_change_an_old_ledger(old: Path) -> None:
    """A coordinator of 0.1.0 may be running on it."""
    ledger = Ledger(old, read_only=True)
    assert len(list(ledger.sibling().rows())) == ledger.step == 14
    ledger.close()
    with connect(old) as db:
        assert schema.is_old(db)


def test_a_newer_ledger_is_refused_and_names_the_required_version(old: Path) -> None:
    Ledger(old).close()
    with connect(old) as db:
        db.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
        db.execute("UPDATE about SET value = '0.9.0' WHERE key = 'requires'")
    for read_only in (False, True):
        with pytest.raises(LedgerError, match=r"version 5 and needs thinwire 0\.9\.0; this is thinwire"):
            Ledger(old, read_only=read_only)


def test_two_processes_migrate_once(old: Path) -> None:
    """Both processes see the old version. When the second one gets the lock, the ledger is migrated already."""
    with connect(old) as one, connect(old) as other:
        one.execute("BEGIN IMMEDIATE")
        migrate(one, len(schema.MIGRATIONS), partial(schema.statements, one))
        one.execute("COMMIT")
        migrate(other, len(schema.MIGRATIONS), partial(schema.statements, other))
        assert version_of(other) == len(schema.MIGRATIONS)
