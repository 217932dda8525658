"""`thinwire-coordinator init` and its like with a machine that `thinwire-node doctor --json` measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from support.planning import run_init
from thinwire_coordinator.cli.init import line_of, machine_of
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.planning.facts import DOWN_MBIT, UP_MBIT

PARAMETERS = 1_000_000


def report(folder: Path, *, asked: bool = True) -> str:
    """asked: whether the doctor had an invite."""
    path = folder / "doctor.json"
    coordinator = {"parameters": PARAMETERS, "line": {"up_bits_s": 3e6, "down_bits_s": 7e6}}
    found = {
        "machine": {"tokens_s": 5000.0, "memory_bytes": 8 << 30, "card_bytes": None},
        "coordinator": coordinator if asked else None,
        "run": {"samples_s": 2.0, "tokens_s": 100.0, "samples_full": 8} if asked else None,
    }
    path.write_text(json.dumps(found))
    return str(path)


def arguments(*words: str) -> argparse.Namespace:
    return parser().parse_args(["init", *words])


def test_a_report_gives_speed_memory_and_line_and_options_come_first(tmp_path: Path) -> None:
    named = report(tmp_path)
    machine = machine_of(named)
    assert machine.flops_s == 6 * PARAMETERS * 100
    assert machine.memory_bytes == 8 << 30
    assert line_of(arguments("--machine", named)) == (3.0, 7.0)
    assert line_of(arguments("--machine", named, "--up", "1")) == (1.0, 7.0)
    alone = report(tmp_path, asked=False)
    assert machine_of(alone).flops_s > 6 * 100_000 * 5000  # byte-1m has about 900,000 parameters
    assert line_of(arguments("--machine", alone)) == (UP_MBIT, DOWN_MBIT)


def test_a_run_is_planned_for_it(tmp_path: Path) -> None:
    out = tmp_path / "run.toml"
    run_init("--machine", report(tmp_path), "--nodes", "2", "--out", str(out))
    assert "--up 3 --down 7" in out.read_text()


def test_another_word_is_refused_with_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("--machine", "mainframe")
    assert "laptop" in (said := capsys.readouterr().err)
    assert "thinwire-node doctor --json" in said
