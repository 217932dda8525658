"""A backup is one moment of a run, whatever happens while it is copied, and a restored run is that run."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from support.sealed_run import make_run
from thinwire_coordinator.hall.ledger import backup
from thinwire_coordinator.hall.ledger.backup import LIST, back_up, restore
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.verify import verify
from thinwire_proto.errors import ConfigError, Damaged


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    make_run(folder, 3)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_comes_back_as_it_was(run: Path, tmp_path: Path) -> None:
    copy, back = tmp_path / "copy", tmp_path / "back"
    done = back_up(run, str(copy))
    assert (done.step, done.copied) == (3, done.files)
    listed = restore(str(copy), back)
    assert listed.step == 3
    verify(back, lambda line: None)
    with_key = open_state(back)
    assert with_key.key.public == open_state(run).key.public
    assert not list(copy.rglob("*.part"))
    assert not list(run.glob(".backup-*"))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert all(stat.S_IMODE((back / kept.path).stat().st_mode) == 0o600 for kept in listed.files)


def test_the_next_backup_copies_what_is_new(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    back_up(run, str(copy))
    assert back_up(run, str(copy)).copied == 0
    before = set(files_of(copy))
    (run / "organizer.secret").write_text("another")
    assert back_up(run, str(copy)).copied == 1
    assert len(set(files_of(copy)) - before) == 1
    (run / "organizer.secret").unlink()
    back_up(run, str(copy))
    assert set(files_of(copy)) == before


def test_a_store_that_is_no_folder_takes_a_backup_too(run: Path, tmp_path: Path) -> None:
    back_up(run, "memory://backups/one")
    assert back_up(run, "memory://backups/one").copied == 0
    restore("memory://backups/one", tmp_path / "back")
    verify(tmp_path / "back", lambda line: None)


def test_a_backup_that_breaks_off_is_the_one_before(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    back_up(run, str(copy))
    before = (copy / LIST).read_bytes()
    (run / "organizer.secret").write_text("another")

    def breaks(*given: object) -> None:
        raise OSError("the cable was pulled")

    with monkeypatch.context() as during:
        during.setattr(backup.Store, "write_list", breaks)
        with pytest.raises(OSError, match="cable"):
            back_up(run, str(copy))
    assert (copy / LIST).read_bytes() == before
    restore(str(copy), tmp_path / "back")
    verify(tmp_path / "back", lambda line: None)


def test_what_retention_deletes_meanwhile_makes_it_start_over(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    real, body = backup._named_by, min((run / "updates").iterdir())
    moved = tmp_path / body.name

    def deletes(ledger: Path) -> tuple[int, list[tuple[int, str]]]:
        if not said:
            body.rename(moved)
        return real(ledger)

    def brings_back(line: str) -> None:
        said.append(line)
        moved.rename(body)

    monkeypatch.setattr(backup, "_named_by", deletes)
    back_up(run, str(tmp_path / "copy"), brings_back)
    assert "was deleted meanwhile" in said[0]
    restore(str(tmp_path / "copy"), tmp_path / "back")
    verify(tmp_path / "back", lambda line: None)


@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_restore_that_breaks_off_leaves_no_run_and_can_go_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """at: the number of the file; -1: the last one, which makes it a run."""
    copy, back = tmp_path / "copy", tmp_path / "back"
    files = back_up(run, str(copy)).files
    with monkeypatch.context() as during:
        calls = iter(range(files))
        real = backup.Store.get

        def breaks(self: backup.Store, *given: object) -> None:
            if next(calls) == at % files:
                raise OSError("the cable was pulled")
            real(self, *given)  # type: ignore[arg-type]

        during.setattr(backup.Store, "get", breaks)
        with pytest.raises(OSError, match="cable"):
            restore(str(copy), back)
    assert not (back / "contract.json").exists()
    restore(str(copy), back)
    assert not (back / "restoring").exists()
    verify(back, lambda line: None)


def test_damage_and_other_runs_are_said(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with pytest.raises(ConfigError, match="is no backup of a run"):
        restore(str(tmp_path / "nothing"), tmp_path / "back")
    back_up(run, str(copy))
    with pytest.raises(ConfigError, match="has a run already"):
        restore(str(copy), run)
    full = tmp_path / "full"
    full.mkdir()
    (full / "holiday.jpg").touch()
    with pytest.raises(ConfigError, match=r"has holiday\.jpg"):
        restore(str(copy), full)
    other = tmp_path / "other"
    other.mkdir()
    make_run(other, 1)
    with pytest.raises(ConfigError, match="has the backup of another run"):
        back_up(other, str(copy))
    with pytest.raises(ConfigError, match="is not a coordinator's state directory"):
        back_up(tmp_path / "nothing", str(copy))

    listed = json.loads((copy / LIST).read_text())
    ledger = copy / next(kept["name"] for kept in listed["files"] if kept["path"] == "ledger.sqlite")
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:-1] + b"x")
    with pytest.raises(Damaged, match="not what it was"):
        restore(str(copy), tmp_path / "back")
    ledger.unlink()
    with pytest.raises(Damaged, match="is missing"):
        restore(str(copy), tmp_path / "back")


@pytest.mark.parametrize("path", ["../key", "/etc/passwd", "a/b/c", "", ".."])
def test_a_list_names_nothing_outside_of_the_folder(run: Path, tmp_path: Path, path: str) -> None:
    copy = tmp_path / "copy"
    back_up(run, str(copy))
    listed = json.loads((copy / LIST).read_text())
    listed["files"][0]["path"] = path
    (copy / LIST).write_text(json.dumps(listed))
    with pytest.raises(Damaged, match="is no file of a run"):
        restore(str(copy), tmp_path / "back")


def test_one_backup_at_a_time_and_the_next_removes_what_a_killed_one_has_left(run: Path, tmp_path: Path) -> None:
    (run / ".backup-killed").mkdir()
    (run / ".backup-killed" / "ledger.sqlite").write_bytes(b"half")
    with FileLock(run / ".backup.lock"), pytest.raises(ConfigError, match="another backup"):
        back_up(run, str(tmp_path / "copy"))
    assert (run / ".backup-killed").exists()
    back_up(run, str(tmp_path / "copy"))
    assert not list(run.glob(".backup-*"))


def _shortened(run: Path, folder: Path, rows: int) -> Path:
    """A copy of a run as a machine has it that was brought back from an older image."""
    shutil.copytree(run, folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db, db:
        for table in ("rows", "contributions"):
            db.execute(f"DELETE FROM {table} WHERE step >= ?", (rows,))
    return folder


def test_a_ledger_that_lacks_rows_does_not_take_the_place_of_a_backup(run: Path, tmp_path: Path) -> None:
    older = _shortened(run, tmp_path / "older", 2)
    back_up(run, str(tmp_path / "copy"))
    with pytest.raises(
        ConfigError, match=r"up to step 3, and its last rows are not in .* give another address, or `restore`"
    ):
        back_up(older, str(tmp_path / "copy"))
    listed = json.loads((tmp_path / "copy" / LIST).read_text())
    (tmp_path / "copy" / LIST).write_text(json.dumps(listed | {"head": "00" * 32}))  # as of a promoted standby
    with pytest.raises(ConfigError, match="its last rows are other ones than"):
        back_up(run, str(tmp_path / "copy"))
    assert restore(str(tmp_path / "copy"), tmp_path / "back").step == 3


def test_an_address_that_is_empty_or_in_the_run_itself_is_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match="the address is empty"):
        back_up(run, "")
    for inside in (run, run / "copy"):
        with pytest.raises(ConfigError, match="a backup there is lost with it"):
            back_up(run, str(inside))


def test_a_restore_that_broke_off_goes_on_with_the_same_backup_alone(run: Path, tmp_path: Path) -> None:
    other, back = tmp_path / "other", tmp_path / "back"
    other.mkdir()
    make_run(other, 3)
    back_up(run, str(tmp_path / "copy"))
    back_up(other, str(tmp_path / "others"))
    restore(str(tmp_path / "others"), back)
    (back / "contract.json").unlink()
    (back / "restoring").write_text(json.loads((tmp_path / "others" / LIST).read_text())["run"])
    with pytest.raises(ConfigError, match="an interrupted restore of another backup"):
        restore(str(tmp_path / "copy"), back)
    restore(str(tmp_path / "others"), back)


def test_what_is_sealed_while_it_copies_is_not_in_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, later = backup.copy_database, "ab" * 32

    def seals(source: Path, target: Path) -> None:
        real(source, target)
        (run / "updates" / later).write_bytes(b"of the next row")

    monkeypatch.setattr(backup, "copy_database", seals)
    back_up(run, str(tmp_path / "copy"))
    assert (run / "updates" / later).exists()
    assert not (tmp_path / "copy" / "updates" / later).exists()


def test_the_next_backup_removes_what_one_that_broke_off_has_left_there(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    back_up(run, str(copy))
    before = set(files_of(copy))
    for name in ("ledger.sqlite.0123456789abcdef", "tls/server.pem.0123456789abcdef", "notes.txt"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"left")
    back_up(run, str(copy))
    assert set(files_of(copy)) == before | {"notes.txt"}
