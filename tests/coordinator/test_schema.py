"""Tests of the ledger's schema: all tables are created or none, and another schema is refused."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from thinwire_coordinator.hall.ledger import schema
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_proto.errors import LedgerError

DIES_AT = """
import os, signal, sqlite3, sys
from thinwire_common.sqlite_schema import create_tables
from thinwire_coordinator.hall.ledger import schema
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
seen = []
def count(statement):
    seen.append(statement)
    if len(seen) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
db.set_trace_callback(count)
create_tables(db, "ledger", schema.SCHEMA_VERSION, schema.SCHEMA, ValueError)
print(len(seen))
"""


def connect(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path, isolation_level=None))


def test_the_creation_survives_kill_9_at_each_of_its_statements(tmp_path: Path) -> None:
    """A real process is killed. It leaves an empty file, and the next start creates the tables."""

    def run(path: Path, dies_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", DIES_AT, str(path), str(dies_at)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    whole = run(tmp_path / "whole.sqlite", 0)
    assert whole.returncode == 0, whole.stderr
    statements = int(whole.stdout)
    assert statements > len(schema.SCHEMA)
    for dies_at in (4, statements // 2, statements - 1):
        path = tmp_path / f"{dies_at}.sqlite"
        assert run(path, dies_at).returncode == -signal.SIGKILL
        with connect(path) as db:
            assert db.execute("SELECT name FROM sqlite_master").fetchall() == []
        ledger = Ledger(path)
        assert ledger.step == 0
        ledger.close()


@pytest.mark.parametrize("version", [0, schema.SCHEMA_VERSION - 1, schema.SCHEMA_VERSION + 1])
def test_a_ledger_of_another_schema_is_refused_with_its_version(version: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with connect(path) as db:
        db.execute(f"PRAGMA user_version = {version}")
    for read_only in (False, True):
        with pytest.raises(LedgerError, match=f"has schema version {version}; this is thinwire .*, which reads"):
            Ledger(path, read_only=read_only)
