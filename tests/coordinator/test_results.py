"""What `evaluate` has found stays in the state directory, and no contents of its file harm the coordinator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.sealed_run import make_run
from thinwire_coordinator.cli.branch import branch
from thinwire_coordinator.hall.ledger import results
from thinwire_coordinator.hall.ledger.backup import back_up, restore
from thinwire_coordinator.hall.ledger.results import FILE, NewestResults, Result, add_results, read_results
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.hall.web import status


def found(step: int, name: str = "sums", metric: str = "acc", value: float = 0.5) -> Result:
    return Result(kind="task", name=name, step=step, metric=metric, value=value, stderr=0.1, count=10)


def test_results_are_added_and_a_later_one_holds(tmp_path: Path) -> None:
    newest = NewestResults(tmp_path)
    assert newest.read() == ()
    add_results(tmp_path, [found(1), found(2)])
    assert newest.read() == (found(1), found(2))
    add_results(tmp_path, [found(1, value=0.75)])
    assert newest.read() == (found(2), found(1, value=0.75))


@pytest.mark.parametrize(
    "damage",
    [
        b'{"kind":"task","name":"sums","step":9,"metr',
        b"[" * 5000,
        b'{"kind":"task","name":"sums","step":9,"metric":"acc","value":NaN}',
        b'{"kind":"task","name":"sums","step":-9,"metric":"acc","value":1}',
        b'{"kind":"other","name":"sums","step":9,"metric":"acc","value":1}',
        b'{"kind":"task","name":"' + 5000 * b"n" + b'","step":9,"metric":"acc","value":1}',
        b"\xff\x00\n\n7",
    ],
)
def test_a_damaged_line_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    add_results(tmp_path, [found(1)])
    with (tmp_path / FILE).open("ab") as file:
        file.write(damage)
    assert read_results(tmp_path) == (found(1),)
    add_results(tmp_path, [found(2)])  # after a line that was not ended
    assert read_results(tmp_path) == (found(1), found(2))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert NewestResults(tmp_path).read() == ()


def test_the_file_has_a_bound_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "BYTES_MAX", 4096)
    for step in range(200):
        add_results(tmp_path, [found(step)])
        assert (tmp_path / FILE).stat().st_size <= 4096
    steps = [one.step for one in read_results(tmp_path)]
    assert steps == list(range(steps[0], 200))
    assert len(steps) > 10
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes() * 4)  # by another hand
    assert {one.step for one in read_results(tmp_path)} <= set(steps)


def test_a_backup_has_them_and_a_branch_has_none(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    make_run(run, 3)
    add_results(run, [found(1)])
    back_up(run, str(tmp_path / "copy"))
    add_results(run, [found(2)])
    assert back_up(run, str(tmp_path / "copy")).copied == 1
    restore(str(tmp_path / "copy"), tmp_path / "back")
    assert read_results(tmp_path / "back") == (found(1), found(2))
    branch(run, 2, tmp_path / "aside", {}, apart=False)
    open_state(tmp_path / "aside").close()
    assert read_results(tmp_path / "aside") == ()


def test_the_page_gets_bounded_series_by_step() -> None:
    many = [
        Result(kind="task", name=f"task-{task}", step=step, metric=f"metric-{metric}", value=step / 7)
        for task in range(30)
        for step in range(100, 0, -1)
        for metric in range(5)
    ]
    curve = Result(kind="set", name="held_out", step=1, metric="loss", value=2.0)
    shown = status.evaluated([curve, *many])
    assert {one["name"] for one in shown} == {f"task-{task}" for task in range(18, 30)}
    assert [len(one["metrics"]) for one in shown] == [3] * 12
    assert shown[0]["metrics"][0] == {
        "name": "metric-0",
        "step": list(range(51, 101)),
        "value": [round(step / 7, 4) for step in range(51, 101)],
        "stderr": [None] * 50,
    }
