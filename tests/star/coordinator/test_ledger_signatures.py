"""Tests of the signatures in the ledger: each is checked, and one that is wrong or lost is named with step and node."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.sealed_run import counted, make_run, node_key, verified
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.verify import verify
from thinwire_proto.errors import ConfigError, Damaged, LedgerError
from thinwire_proto.identity.keys import KEY_FILE, SecretKey

STEPS = 4
NODE = counted(2).node
"""The first node that is counted at step 1."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of four steps, sealed by the real code."""
    make_run(tmp_path, STEPS)
    return tmp_path


def change(folder: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        assert db.execute(sql, values).rowcount > 0
        db.commit()


def test_verify_compares_the_key_with_that_of_an_invite(folder: Path) -> None:
    state = open_state(folder)
    key = state.key.public
    state.close()
    lines: list[str] = []
    verify(folder, lines.append, key.fingerprint)
    named = f"coordinator's key: {key.fingerprint.hex()}"
    assert f"{named}, which is the one that the invite names" in lines
    assert named in verified(folder).splitlines()
    other = SecretKey().public.fingerprint
    with pytest.raises(
        LedgerError, match=f"signed by the key {key.fingerprint.hex()}, but the invite names {other.hex()}"
    ):
        verify(folder, lambda line: None, other)


def test_verify_needs_no_secret(folder: Path) -> None:
    (folder / KEY_FILE).unlink()
    assert "signatures: 4 of rows" in verified(folder)
    assert not (folder / KEY_FILE).exists()


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("UPDATE rows SET signature = zeroblob(64) WHERE step = 1", "the row's signature is not that of the"),
        ("UPDATE rows SET signature = NULL WHERE step = 1", "the row has lost its signature"),
        (
            "UPDATE rows SET signature = (SELECT signature FROM rows WHERE step = 2) WHERE step = 1",
            "the row's signature is not that of the coordinator's key",
        ),
        (f"DELETE FROM public_keys WHERE node = '{NODE}'", f"node {NODE}: its public key is missing"),
        (
            f"UPDATE public_keys SET key = (SELECT max(key) FROM public_keys) WHERE node = '{NODE}'",
            f"node {NODE}: the public key on record is that of node",
        ),
    ],
)
def test_a_wrong_signature_or_key_is_found_and_named(folder: Path, sql: str, why: str) -> None:
    change(folder, sql)
    with pytest.raises(Damaged, match=f"step 1: {why}") as error:
        verified(folder)
    assert error.value.step == 1


@pytest.mark.parametrize(
    ("value", "why"), [("NULL", "its contribution has no signature"), ("zeroblob(64)", "the signature is not that of")]
)
def test_a_wrong_signature_of_a_contribution_is_found_and_named(folder: Path, value: str, why: str) -> None:
    change(folder, f"UPDATE contributions SET signature = {value} WHERE hash = ?", counted(2).contribution)
    with pytest.raises(Damaged, match=f"step 1: node {NODE}: {why}"):
        verified(folder)


def test_a_row_of_another_coordinator_is_found(folder: Path) -> None:
    """Its hashes are right, so only the signature tells."""
    change(folder, "UPDATE about SET value = ? WHERE key = 'coordinator_key'", node_key(1).public.data.hex())
    with pytest.raises(Damaged, match="step 0: the row's signature is not that of the coordinator's key"):
        verified(folder)


def test_a_run_does_not_open_with_another_key_or_without_its_key(folder: Path) -> None:
    path = folder / KEY_FILE
    right = path.read_bytes()
    path.write_bytes(SecretKey().data)
    with pytest.raises(ConfigError, match=r"the rows of this run are signed by .*; restore the key that signed them"):
        open_state(folder)
    path.unlink()
    with pytest.raises(ConfigError, match=f"{KEY_FILE} is missing: .*restore it from a copy"):
        open_state(folder)
    assert not path.exists(), "no new key is made"
    path.touch(mode=0o600)
    path.write_bytes(right)
    open_state(folder).close()
