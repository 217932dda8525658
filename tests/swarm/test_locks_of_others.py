"""Another program holds SQLite's lock of one of the coordinator's databases: rounds become void, and it goes on."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from support.sealed_run import make_run
from support.small import random_votes
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.hall.workers import Workers
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_coordinator.star.sealing import Sealer
from thinwire_proto import limits
from thinwire_proto.errors import LedgerError, LocalError, Locked
from thinwire_proto.exact.votes import Merger
from thinwire_proto.wire.rows import Row


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


def test_a_row_that_meets_a_lock_leaves_no_body(tmp_path: Path, impatient: None) -> None:
    """More than one body without a row is taken for lost rows, and nothing is deleted any more (`retention`)."""
    make_run(tmp_path, 1)
    with closing(open_state(tmp_path)) as state:
        replica, before = replica_at_head(state), state.bodies.names()
        merger = Merger(replica.layout.components)
        merger.add(random_votes(replica.layout, 8, 1), 8)

        async def seal() -> None:
            with closing(Workers()) as workers:
                sealer = Sealer(state, replica, Feed(AsyncMock(), 1), workers, time.monotonic)
                await sealer.seal(Row(1, 1, 1, 7, 0, b"", 0, (), b""), (), merger)

        with locked(tmp_path / "ledger.sqlite"), pytest.raises(Locked):
            asyncio.run(seal())
        assert state.bodies.names() == before
        asyncio.run(seal())
        assert len(state.bodies.names()) == len(before) + 1


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
