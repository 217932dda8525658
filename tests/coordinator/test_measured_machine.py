"""`thinwire-coordinator init` and its like with a machine that `thinwire-node doctor --json` measured."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from support.planning import run_init
from thinwire_coordinator.cli.init import line_of, machine_of
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.planning.facts import DOWN_MBIT, UP_MBIT, ModelFacts, site_of
from thinwire_coordinator.planning.plan import fit_of
from thinwire_proto.contract import RunSpec
from thinwire_proto.pass_memory import Activations, ModelMemory

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


@pytest.mark.parametrize(
    ("machine", "rule", "said"),
    [
        ("8xH100-80G", "demo", r"the model +whole on each card: \d+ samples of [\d,]+ tokens at once"),
        ("4xrtx-3090", "demo", r"the model +divided among the cards: .* with checkpoints on each"),
        (
            "4xrtx-3090",
            "merged_muon",
            'too large: rule.kind = "merged_muon" steps with whole matrices, so each card must',
        ),
        ("4xrtx-3090-4G", "demo", "too large, even divided among the cards"),
    ],
)
def test_a_node_of_several_cards_is_planned_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, rule: str, said: str
) -> None:
    out = tmp_path / "run.toml"
    run_init("--model", "llama-1b", "--machine", machine, "--rule", rule, "--nodes", "4", "--out", str(out))
    assert re.search(said, text := out.read_text())
    assert re.search(r"its share .* 0.25 of what all do", text)
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: model: ")]
    assert len(notes) == ("too large" in said)


@pytest.mark.parametrize("name", ["8xlaptop", "0xh100", "8xh100-0G", "h100x8", "8x"])
def test_cards_that_are_none_are_refused(name: str) -> None:
    assert site_of(name) is None


def test_the_memory_is_that_of_a_card_and_the_speed_that_of_all() -> None:
    one = machine_of("h100")
    assert machine_of("8xH100-141G") == one._replace(flops_s=8 * one.flops_s, memory_bytes=141e9, cards=8)
    assert machine_of("2xh100").memory_bytes == one.memory_bytes
    assert line_of(arguments("--machine", "8xh100")) == (UP_MBIT, DOWN_MBIT)


def test_a_frozen_base_must_fit_into_each_card() -> None:
    memory = ModelMemory(4, 20 << 30, Activations(1 << 20, 1 << 20, 1 << 20))
    facts = ModelFacts(1000, 1, 0, 64, frozen=10**9, memories=(memory,))
    assert fit_of(RunSpec(), facts, 22e9, 8).words == "too large: each card must hold the whole frozen base and adapter"
