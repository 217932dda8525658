"""The ledger: sealed steps are on disk in a chain, signed, and any change is found and named with its step."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.sealed_run import COLUMNS, counted, make_run, node_key, verified
from thinwire_coordinator.hall.ledger.bodies import Bodies
from thinwire_coordinator.hall.ledger.state_directory import (
    open_state,
)
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_coordinator.verify import verify
from thinwire_proto.errors import ConfigError, Damaged, LedgerError, ReplicaError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import KEY_FILE, SecretKey

STEPS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of four steps, sealed by the real code."""
    make_run(tmp_path, STEPS)
    return tmp_path


@contextmanager
def without_writers(folder: Path) -> Iterator[None]:
    """Inside, nobody can write in the folder: root neither, as on a mounted backup."""
    mounted = os.geteuid() == 0
    if mounted:
        mount = ["mount", "-o", "bind,ro", str(folder), str(folder)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("root cannot mount here")
    else:
        folder.chmod(0o555)
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a traceback may hold the ledger open
        else:
            folder.chmod(0o755)


def test_a_run_is_verified_where_nobody_can_write(folder: Path) -> None:
    with without_writers(folder):
        assert "replayed 4 updates from the first state" in verified(folder)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("step", [0, 2, 3])
def test_one_byte_changed_in_any_field_of_a_row_is_found_and_named(folder: Path, column: str, step: int) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        (value,) = db.execute(f"SELECT {column} FROM rows WHERE step = ?", (step,)).fetchone()
        changed = value ^ 64 if isinstance(value, int) else bytes([*value[:-1], value[-1] ^ 1])
        db.execute(f"UPDATE rows SET {column} = ? WHERE step = ?", (changed, step))
    db.close()
    with pytest.raises(LedgerError) as error:
        verified(folder)
    named = {step, step ^ 64} if column == "step" else {step}
    assert error.value.step in named
    assert f"step {error.value.step}" in str(error.value)
    assert str(error.value).endswith("; restore ledger.sqlite from the newest copy that you have")


def test_a_coordinator_does_not_pass_over_a_last_row_with_another_number(folder: Path) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        db.execute("UPDATE rows SET step = 67 WHERE step = 3")
    db.close()
    with closing(open_state(folder)) as state, pytest.raises(LedgerError, match="step 67: the row does not match"):
        replica_at_head(state)


@pytest.mark.parametrize("step", range(STEPS))
def test_one_byte_changed_in_any_body_is_found_and_named(folder: Path, step: int) -> None:
    state = open_state(folder)
    path = folder / "updates" / state.ledger.row(step).body_hash.hex()
    state.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=f"step {step}: body .*; restore it from the newest copy that you have"):
        verified(folder)
    path.unlink()
    with pytest.raises(LedgerError, match=f"step {step}: body .* is missing; restore it from the newest copy"):
        verified(folder)


@pytest.mark.parametrize("snapshot", [0, 2])
def test_one_bit_changed_in_a_snapshot_is_found_and_named(folder: Path, snapshot: int) -> None:
    path = folder / "snapshots" / f"{snapshot}.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=f"step {snapshot}: .*is damaged.*; restore the snapshot from"):
        verified(folder)


def test_an_intact_snapshot_of_other_parameters_is_found(folder: Path) -> None:
    state = open_state(folder)
    replica = state.load_snapshot(2)
    replica.tensors["norm.weight"][3] += 1
    state.save_snapshot(replica)
    state.close()
    with pytest.raises(LedgerError, match="step 2: the snapshot differs from the replayed state"):
        verified(folder)


def test_a_damaged_snapshot_is_set_aside_and_new_nodes_get_the_previous_one(folder: Path) -> None:
    path = folder / "snapshots" / "2.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    state = open_state(folder)
    assert replica_at_head(state).step == STEPS
    assert state.snapshot_steps() == [0, 2]  # reading alone changes nothing
    assert replica_at_head(state, set_aside=True).step == STEPS
    assert state.snapshot_steps() == [0]
    assert path.with_suffix(".bad").exists()
    state.close()


def test_a_disk_that_fails_sets_no_snapshot_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("thinwire_proto.exact.tensor_files._read", fail)
    state = open_state(folder)
    with pytest.raises(OSError, match=r"Input/output error: .*2\.safetensors"):
        replica_at_head(state, set_aside=True)
    assert state.snapshot_steps() == [0, 2]
    state.close()


def test_a_ledger_that_ends_before_the_newest_snapshot_is_an_error(folder: Path) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        db.execute("DELETE FROM rows WHERE step >= 1")
    db.close()
    with pytest.raises(LedgerError, match="the last rows were lost"):
        verified(folder)
    with pytest.raises(LedgerError, match="the last rows were lost"):
        replica_at_head(open_state(folder))


def test_every_connection_syncs_each_commit(folder: Path) -> None:
    """A power cut, which no test can make, must not lose a step of which nodes were told."""
    with closing(open_state(folder)) as state:
        for ledger in (state.ledger, state.reading_ledger, state.upkeep_ledger):
            found = [ledger._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
            assert found == ["wal", 2]  # FULL


def test_receipts_and_leases_survive(folder: Path) -> None:
    state = open_state(folder)
    row = state.ledger.row(2)
    assert state.ledger.step_of_contribution(row.counted[1].contribution) == 2
    assert state.ledger.step_of_contribution(b"x" * 32) is None
    assert state.ledger.leases().cursor == 16 * STEPS
    assert state.ledger.counted_of([row.counted[0].contribution, b"x" * 32]) == 1
    state.close()


@pytest.mark.parametrize("scheme", ["local", "memory"])
def test_bodies_are_named_by_their_hash_at_any_address(scheme: str, tmp_path: Path) -> None:
    bodies = Bodies(str(tmp_path / "bodies") if scheme == "local" else "memory://bodies")
    body = np.random.default_rng(1).bytes(1000)
    name = bodies.put(body)
    assert bodies.put(body) == name
    assert bodies.get(name, len(body)) == body
    with pytest.raises(LedgerError, match="is missing"):
        bodies.get(b"\0" * 32, 5)


NODE = counted(2).node
"""The first node that is counted at step 1."""


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


def forge(folder: Path, step: int, **changes: Any) -> None:
    """Put another row in the place of one, with its own hash, and signed by the coordinator."""
    with closing(open_state(folder)) as state:
        row = replace(state.ledger.row(step), **changes)
        signature = state.key.sign(statements.row(row.hash))
    fields = {"hash": row.hash, "signature": signature, "term": row.term}
    fields["fingerprint"] = row.fingerprint.to_bytes(8, "big")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db, db:
        names = ", ".join(f"{name} = ?" for name in fields)
        db.execute(f"UPDATE rows SET {names} WHERE step = ?", (*fields.values(), step))


def test_a_first_state_that_is_not_the_one_the_run_began_with_is_found(folder: Path) -> None:
    with closing(open_state(folder)) as state:
        first = state.load_snapshot(0)
        next(iter(first.tensors.values())).view(-1)[0] += 1
        state.save_snapshot(first)
    with pytest.raises(Damaged, match="step 0: the first state does not match the start of the ledger"):
        verified(folder)


def test_a_snapshot_of_another_history_is_found(folder: Path) -> None:
    with closing(open_state(folder)) as state:
        replica = state.load_snapshot(2)
        replica.head = bytes(32)
        state.save_snapshot(replica)
        for check in (state.load_own_snapshot, state.check_own_snapshot):
            with pytest.raises(ReplicaError, match="does not belong to the row of step 1"):
                check(2)
    with pytest.raises(LedgerError, match="step 2"):
        verified(folder)


def test_a_coordinator_that_seals_parameters_that_nobody_has_is_found(folder: Path) -> None:
    with closing(open_state(folder, read_only=True)) as state:
        last = state.ledger.row(STEPS - 1)
    forge(folder, STEPS - 1, fingerprint=last.fingerprint ^ 1)
    with pytest.raises(LedgerError, match="do not match the sealed fingerprint"):
        verified(folder)


def test_a_coordinator_that_changes_the_past_whose_bodies_are_deleted_is_found(folder: Path) -> None:
    with closing(open_state(folder)) as state:
        state.bodies.remove([state.ledger.row(step).body_hash.hex() for step in (0, 1)])
        state.snapshot_path(0).unlink()
    assert "the 2 updates before step 2" in verified(folder)
    forge(folder, 0, term=2)
    with pytest.raises(Damaged, match="step 1: the row does not follow the previous row"):
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
