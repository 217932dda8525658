"""Another program holds SQLite's lock of one of the coordinator's databases: rounds become void, and it goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_proto import limits
from thinwire_proto.errors import LedgerError, LocalError, Locked


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock for writing, as a backup or a curious organizer does."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are opened now wait for a lock for a moment only."""
    monkeypatch.setattr(limits, "LEDGER_BUSY_S", 0.01)
    monkeypatch.setattr("thinwire_coordinator.hall.access.database.LEDGER_BUSY_S", 0.01)


def test_void_rounds_that_meet_a_lock_are_recorded_with_the_next_ones(tmp_path: Path, impatient: None) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    term = ledger.begin_term().number
    ledger.record_void(term, 4, "first")
    with locked(tmp_path / "ledger.sqlite"):
        ledger.record_void(term, 5, "second")
        ledger.record_void(term, 6, "third")
        ledger.record_void(term, 8, "after a sealed one")
        assert ledger.rounds_void == 1
    ledger.record_void(term, 9, "last")
    assert ledger.rounds_void == 5
    assert ledger.voids_before(term + 1, 9)[1] == [(4, 6, "third"), (8, 9, "last")]


def test_a_lock_is_named_with_the_file_and_who_holds_it(tmp_path: Path, impatient: None) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    with locked(path), pytest.raises(Locked, match=r"ledger.sqlite: database is locked; .*fuser -v"):
        ledger.record_names({"a": "b"})
    with locked(path), pytest.raises(Locked, match=r"ledger.sqlite: database is locked; .*fuser -v"):
        Ledger(path).begin_term()


def test_an_access_file_that_is_locked_is_named(tmp_path: Path, impatient: None) -> None:
    store = AccessStore(tmp_path)
    with locked(tmp_path / "access.sqlite"), pytest.raises(Locked, match=r"access.sqlite.*locked; another program"):
        store.settings.put("a", "b")
    store.settings.put("a", "b")
    store.close()


def test_each_other_fault_of_a_database_has_its_own_words(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger._db.execute("PRAGMA query_only = 1")
    with pytest.raises(LedgerError) as refused:
        ledger.record_names({"a": "b"})
    assert not isinstance(refused.value, Locked)
    assert "must own all files" in refused.value.mend
    ledger._db.execute("PRAGMA query_only = 0")
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerError, match="full") as full:
        ledger.record_names({str(number): "b" * 100 for number in range(1000)})
    assert "free some space" in full.value.mend
    (tmp_path / "access.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(LocalError, match="restore it from a copy"):
        AccessStore(tmp_path)
