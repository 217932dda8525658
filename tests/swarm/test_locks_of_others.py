"""Another program holds SQLite's lock of one of the coordinator's databases: rounds become void, and it goes on."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.real import LONG_MS, RealSwarm, run_text, until
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_proto import limits
from thinwire_proto.errors import LedgerError, LocalError, Locked

LONG = run_text(100_000, length_ms=LONG_MS)


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


def test_rounds_are_void_while_the_ledger_is_locked_and_the_run_goes_on(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(LONG)
    node = swarm.node("a")
    swarm.reached(3)
    node.tell(signal.SIGSTOP)  # so that the round is announced when the lock is taken
    until(lambda: swarm.status().step == swarm.status().step, "the last contribution of the node is sealed")
    with locked(swarm.state / "ledger.sqlite"):
        node.tell(signal.SIGCONT)
        until(lambda: coordinator.events("coordinator.round_void"), "a void round", coordinator, node)
        void = coordinator.events("coordinator.round_void")[0]
        assert "another program holds the lock" in void["reason"]
        until(lambda: "waiting for a lock" in coordinator.text(), "a grant waits", coordinator)
        step = swarm.status().step
    swarm.reached(step + 3)
    text = coordinator.text()
    assert f"{swarm.state / 'ledger.sqlite'}: database is locked" in text
    assert "fuser -v" in text
    assert "disk" not in text.split("waiting for a lock")[1].splitlines()[0]
    assert node.running
    node.end(10)
    coordinator.end(10)
    step = Ledger(swarm.state / "ledger.sqlite").step
    assert f"replayed {step} updates" in swarm.verify()  # no contribution counts twice: their hashes are unique
    assert len(list((swarm.state / "updates").iterdir())) == step  # no body is left of a void round


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
