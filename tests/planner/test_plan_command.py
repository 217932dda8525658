"""The command `thinwire plan`: options and files in, a table, JSON or an error in words out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from thinwire_planner.__main__ import main

OPTIONS = ("--parameters", "885888", "--nodes", "4", "--compute", "0.42", "--up", "4", "--rtt", "100")
FILE = """
[model]
preset = "byte-1m"

[compute]
seconds = [0.4, 0.42, 0.45]

[nodes]
rtt_ms = 40

[[group]]
hosts = 2
site = "lyon"
up_mbit = 100

[[group]]
hosts = 2
site = "oslo"
speed = 0.5
up_mbit = 20
down_mbit = 50

[[round_trip]]
between = ["lyon", "oslo"]
ms = 45
"""


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["thinwire", "plan", *words])
    main()


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    run(monkeypatch, *words, "--json")
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, status: int = 1) -> str:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *words)
    assert ended.value.code == status
    return capsys.readouterr().err


def test_the_table_ends_with_the_choice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, *OPTIONS)
    out = capsys.readouterr().out
    assert "take: star" in out
    assert "all-reduce, DDP" in out
    assert "not recommended" not in out
    run(monkeypatch, "--parameters", "885888", "--nodes", "32", "--compute", "0.05", "--up", "1", "--rtt", "40")
    assert "faster, and not recommended: gossip" in capsys.readouterr().out


def test_the_table_has_the_fastest_of_each_method_and_all_of_them_if_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    found: list[list[str]] = []
    for words in ((), ("--all",)):
        run(monkeypatch, *OPTIONS, *words)
        table = capsys.readouterr().out.partition("take:")[0]
        found.append([line for line in table.splitlines() if "star, demo," in line])
    fastest, (first, *others) = found
    assert fastest == [first]
    assert len(others) == 2


def test_a_file_has_sites_speeds_and_measured_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(FILE)
    document = printed(monkeypatch, capsys, str(path))
    setting = document["setting"]
    assert (setting["nodes"], setting["parameters"]) == (4, 885_888)
    assert setting["compute_mean_s"] == pytest.approx((0.4 + 0.42 + 0.45) / 3 * 1.5)


@pytest.mark.parametrize("option", ["--up", "--down"])
def test_an_option_that_groups_leave_without_effect_is_refused(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(FILE)
    assert f"rates of their own; remove {option}" in refused(monkeypatch, capsys, str(path), option, "500")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "model is missing; give --preset or --parameters; compute is missing; give --compute"),
        (("--parameters", "1000", "--compute", "1"), "give --nodes, --up and --rtt"),
        ((*OPTIONS, "--preset", "byte-1m"), "either as --preset (model.preset) or as --parameters"),
        (("--preset", "none", *OPTIONS[2:]), "'none' does not exist; choose one of"),
        ((*OPTIONS, "--per-host", "3"), "cannot be divided evenly into hosts of 3"),
        (("/nonexistent.toml",), "cannot be read"),
    ],
)
def test_errors_say_what_to_give(
    words: tuple[str, ...], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((*OPTIONS, "--up", "0"), "--up: input should be greater than 0"),
        ((*OPTIONS, "--nodes", "4097"), "--nodes: input should be less than or equal to 4096"),
        ((*OPTIONS, "--up", "inf"), "--up: input should be less than or equal to"),
        ((*OPTIONS, "--variation", "11"), "--variation: input should be less than or equal to 10"),
    ],
)
def test_a_wrong_option_ends_with_2(
    words: tuple[str, ...], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(monkeypatch, capsys, *words, status=2)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("rtt_ms = 40", "", "the round trip between 'lyon' and 'lyon' is missing"),
        ('"oslo"]', '"bergen"]', "no group has the site 'bergen'"),
        ("rtt_ms = 40", "rtt_ms = 40\ncount = 5", "nodes.count is 5, and the groups have 4 nodes"),
        ("hosts = 2", "hosts = 2\nhost = 1", "group.0.host: there is no such key"),
        ("rtt_ms = 40", 'rtt_ms = 40\nper_host = "two"', "nodes.per_host: must be a whole number, not 'two'"),
        ("hosts = 2", 'hosts = "2"', "group.0.hosts: must be a whole number, not '2'"),
        ("hosts = 2", "hosts = 2.5", "group.0.hosts: must be a whole number, not 2.5"),
        ("rtt_ms = 40", 'rtt_ms = "40"', "nodes.rtt_ms: must be a number, not '40'"),
        ("0.45]", '"0.45"]', "plan.toml: compute.seconds.2: must be a number, not '0.45'\n"),
        ("seconds = [", 'seconds = "0.4" # [', "plan.toml: compute.seconds: must be a number, not '0.4'\n"),
        ("[model]", "[model", "is not TOML"),
        ("0.45]", "0.45]\nvariation = 0.5", "a variation of their own; remove --variation"),
        (
            "up_mbit = 100",
            "up_mbit = 1e-320",
            "group.0.up_mbit: input should be greater than or equal to 0.0000000",
        ),
        ("rtt_ms = 40", "rtt_ms = 40\nup_mbit = 5", "the groups have rates of their own; remove --up (nodes.up_mbit)"),
    ],
)
def test_errors_in_a_file_name_the_key(
    old: str,
    new: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(FILE.replace(old, new, 1))
    assert problem in refused(monkeypatch, capsys, str(path))


def test_a_doctors_report_gives_line_and_step_where_no_option_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "doctor.json"
    line, run = {"up_bits_s": 4e6, "down_bits_s": 4e6}, {"samples_s": 20.0, "samples_full": 8}
    found = {
        "machine": {"tokens_s": 5e3, "memory_bytes": 8 << 30},
        "coordinator": {"parameters": 885_888, "line": line},
        "run": run,
    }
    report.write_text(json.dumps(found))
    model, wide = ("--parameters", "885888"), ("--nodes", "4", "--rtt", "100")
    by_hand = printed(monkeypatch, capsys, *model, *wide, "--compute", "0.4", "--up", "4", "--down", "4")
    assert printed(monkeypatch, capsys, *model, *wide, "--machine", str(report)) == by_hand
    slower = printed(monkeypatch, capsys, *model, *wide, "--machine", str(report), "--compute", "3")
    assert slower["setting"]["compute_mean_s"] == 3

    report.write_text(json.dumps(found | {"coordinator": None, "run": None}))
    alone = refused(monkeypatch, capsys, *model, *wide, "--machine", str(report))
    assert "measured no run and no line" in alone
    report.write_text(json.dumps(found | {"machine": {"tokens_s": -1, "memory_bytes": 1}}))
    assert "is not what `thinwire-node doctor --json` prints" in refused(
        monkeypatch, capsys, *model, "--machine", str(report)
    )
