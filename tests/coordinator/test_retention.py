"""Tests of retention, also when interrupted, and of the disk forecast.

The kept files must always lead from the oldest snapshot to the head.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.sealed_run import make_run, verified
from thinwire_coordinator.hall.capacity import ROW_BYTES, measure
from thinwire_coordinator.hall.ledger.bodies import NAME, Bodies
from thinwire_coordinator.hall.ledger.checks import SignatureCheck
from thinwire_coordinator.hall.ledger.retention import SNAPSHOTS_KEPT, NotKept, Retention, surplus_snapshots
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.star.kind import KIND, star_forecast
from thinwire_coordinator.star.replay import replay, replica_at_head
from thinwire_coordinator.star.star import read_encoded
from thinwire_proto.errors import ConfigError
from thinwire_proto.wire.rows import Row

STEPS = 10
SNAPSHOTS = (0, 2, 4, 6, 8)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten sealed steps, with a snapshot at every second step."""
    folder = tmp_path_factory.mktemp("sealed")
    make_run(folder, STEPS)
    state = open_state(folder)
    replica = state.load_snapshot(0)
    for step in SNAPSHOTS[1:]:
        for _ in replay(state, replica, step):
            pass
        state.save_snapshot(replica)
    state.close()
    return folder


@pytest.fixture
def state(sealed: Path, tmp_path: Path) -> RunState:
    shutil.copytree(sealed, tmp_path / "state")
    return open_state(tmp_path / "state")


def names(state: RunState, *steps: int) -> set[str]:
    return {state.ledger.row(step).body_hash.hex() for step in steps}


# the rule


@pytest.mark.parametrize(
    ("steps", "keep", "surplus"),
    [
        ([0], None, []),
        ([0, 5, 9], None, []),
        ([0, 5, 9, 14], None, []),
        ([0, 5, 9, 14, 20, 26], None, [5, 9]),
        ([9, 14, 20, 26, 30], None, [14]),  # left by an earlier --keep: the oldest snapshot replaces the first state
        ([0], 2, []),
        ([0, 5], 2, []),
        ([0, 5, 9], 2, [0]),
        ([0, 5, 9, 14], 2, [0, 5]),
        ([0, 5, 9, 14], 9, []),
    ],
)
def test_which_snapshots_are_surplus(steps: list[int], keep: int | None, surplus: list[int]) -> None:
    assert surplus_snapshots(steps, keep) == surplus


def test_without_keep_all_bodies_and_the_first_and_newest_snapshots_stay(state: RunState) -> None:
    Retention(state, None).sweep()
    assert state.snapshot_steps() == [0, *SNAPSHOTS[-SNAPSHOTS_KEPT:]]
    assert state.bodies.names() == names(state, *range(STEPS))
    assert "replayed 10 updates from the first state" in verified(state.folder)


def test_bodies_are_deleted_one_pass_after_their_snapshot(state: RunState) -> None:
    retention = Retention(state, 2)
    retention.sweep()
    assert state.snapshot_steps() == [6, 8]
    assert state.bodies.names() == names(state, *range(STEPS))  # current readers are not interrupted
    state.save_snapshot(replica_at_head(state))
    retention.trim()
    assert state.snapshot_steps() == [8, 10]
    assert state.bodies.names() == names(state, 6, 7, 8, 9)
    text = verified(state.folder)
    assert "replayed 2 updates from the snapshot of step 8, the oldest that is kept" in text
    assert "for the 8 updates before step 8, only each row" in text
    with pytest.raises(ConfigError, match="step 7 is no longer kept: the oldest snapshot is that of step 8"):
        KIND.model_at(open_state(state.folder, read_only=True), 7)
    assert KIND.model_at(open_state(state.folder, read_only=True), 9).step == 9
    Retention(state, 2).sweep()  # after a restart there are no readers yet
    assert state.bodies.names() == names(state, 8, 9)
    assert state.ledger.step == STEPS


def test_older_snapshots_stay_until_the_one_that_becomes_the_oldest_can_be_read(state: RunState) -> None:
    path = state.snapshot_path(6)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    retention = Retention(state, 2)
    retention.sweep()
    assert state.snapshot_steps() == list(SNAPSHOTS)
    path.write_bytes(whole)
    retention.trim()
    assert state.snapshot_steps() == [6, 8]


def test_a_node_older_than_the_oldest_snapshot_is_sent_to_the_newest(state: RunState) -> None:
    assert not state.snapshot_is_lighter(5)
    retention = Retention(state, 2)
    retention.sweep()
    assert state.snapshot_is_lighter(5)
    assert not state.snapshot_is_lighter(6)
    assert read_encoded(state, 5).size  # a node sent to the updates before still gets them
    Retention(state, 2).sweep()
    with pytest.raises(NotKept, match="the oldest update kept is that of step 6; join again and take a snapshot"):
        read_encoded(state, 5)
    assert read_encoded(state, 6).size


class Crashed(Exception):
    pass


def test_a_crash_at_any_deletion_never_leaves_too_few_files(state: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process completes one deletion and dies at the next, so a crash follows every deletion."""
    deletions_left = 0

    def count() -> None:
        nonlocal deletions_left
        deletions_left -= 1
        if deletions_left < 0:
            raise Crashed

    unlink, remove = Path.unlink, Bodies.remove

    def counted_unlink(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".safetensors":
            count()
        unlink(self, missing_ok)

    def counted_remove(self: Bodies, gone: Iterable[str]) -> None:
        for name in gone:
            if NAME.fullmatch(name):
                count()
            remove(self, [name])

    monkeypatch.setattr(Path, "unlink", counted_unlink)
    monkeypatch.setattr(Bodies, "remove", counted_remove)
    whole = replica_at_head(state).state_hash()
    replayed_from: list[int] = []
    for crashes in range(20):  # noqa: B007 - checked after the loop
        deletions_left = 1
        oldest = state.snapshot_steps()[0]
        assert names(state, *range(oldest, STEPS)) <= state.bodies.names()
        if oldest not in replayed_from:
            replayed_from.append(oldest)
            replica = state.load_own_snapshot(oldest)
            for _ in replay(state, replica):
                pass
            assert replica.state_hash() == whole
        try:
            Retention(state, 2).sweep()
            break
        except Crashed:
            pass
    # three snapshots and four bodies are deleted; the bodies of the last interval follow in the next pass
    assert crashes == 3 + 4 - 1
    assert replayed_from == [0, 2, 4]
    assert state.snapshot_steps() == [6, 8]
    assert state.bodies.names() == names(state, *range(4, STEPS))


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of each logged event with this id."""
    return [vars(record)["fields"] for record in caplog.records if getattr(record, "event", None) == event]


# leftovers of a crash


def test_nothing_is_deleted_if_the_ledger_is_damaged(state: RunState, caplog: pytest.LogCaptureFixture) -> None:
    state.close()
    with sqlite3.connect(state.folder / "ledger.sqlite") as db:
        db.execute("UPDATE rows SET body_hash = zeroblob(32) WHERE step = 1")
    db.close()
    opened = open_state(state.folder)
    retention = Retention(opened, 2)
    retention.sweep()
    retention.trim()
    assert len(opened.bodies.names()) == STEPS
    assert opened.snapshot_steps() == list(SNAPSHOTS)
    assert [fields["place"] for fields in told(caplog, "coordinator.files_differ")] == [str(state.folder)]


@pytest.mark.parametrize(("unnamed", "kept"), [(1, 0), (2, 2)])
def test_one_body_without_a_row_is_left_by_a_crash_and_more_mean_a_lost_row(
    unnamed: int, kept: int, state: RunState, caplog: pytest.LogCaptureFixture
) -> None:
    for body in range(unnamed):
        (state.folder / "updates" / f"{body:064x}").write_bytes(b"a body")
    before = names(state, *range(STEPS))
    Retention(state, None).sweep()
    assert len(state.bodies.names() - before) == kept
    assert before <= state.bodies.names()
    assert len(told(caplog, "coordinator.files_differ")) == (kept > 0)


# sizes


def test_the_sizes_of_a_run_are_those_on_its_disk(state: RunState) -> None:
    forecast, (need,) = measure(state, None, star_forecast)
    bodies = sum(path.stat().st_size for path in (state.folder / "updates").iterdir())
    assert forecast.update_bytes == -(-bodies // STEPS)
    assert forecast.snapshot_bytes == state.snapshot_path(0).stat().st_size
    assert need.there_bytes == bodies + 5 * forecast.snapshot_bytes + STEPS * ROW_BYTES
    assert need.short_bytes == need.total_bytes - need.there_bytes - need.free_bytes
    elsewhere = measure(RunState(**(vars(state) | {"bodies": Bodies("memory://sizes")})), None, star_forecast)[1]
    assert [need.location for need in elsewhere] == [str(state.folder)]


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "thinwire.coordinator")


def test_while_no_snapshot_leads_to_the_ledger_nothing_is_deleted(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby whose coordinator has just gone back to a step before its own snapshots."""
    before = state.snapshot_steps()
    monkeypatch.setattr(type(state), "snapshots_before", lambda self, step: [])
    Retention(state, keep=1).trim()
    assert state.snapshot_steps() == before


# verify beside a coordinator that deletes


def test_verify_goes_on_from_the_next_snapshot_if_the_oldest_is_deleted_meanwhile(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a long run, the rows before the oldest snapshot take longer to check than a snapshot is kept."""
    Retention(state, keep=3).trim()
    assert state.snapshot_steps() == [4, 6, 8]
    check, checked = SignatureCheck.check, []

    def check_beside_a_coordinator(signatures: SignatureCheck, row: Row) -> None:
        if row.step == 3:
            Retention(state, keep=2).trim()
        checked.append(row.step)
        check(signatures, row)

    monkeypatch.setattr(SignatureCheck, "check", check_beside_a_coordinator)
    text = verified(state.folder)
    assert state.snapshot_steps() == [6, 8]
    assert "replayed 4 updates from the snapshot of step 6, the oldest that is kept" in text
    assert f"signatures: {STEPS} of rows" in text
    assert checked == [*range(STEPS)]  # each row once
