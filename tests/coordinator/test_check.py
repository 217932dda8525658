"""`thinwire-coordinator check` explains every error of a run file at once, and warns with figures."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import pytest

from support.token_folder import write_tokens
from thinwire_coordinator.cli.check import check
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.planning.completion import facts_of
from thinwire_coordinator.planning.exchanges import plan_of
from thinwire_coordinator.planning.facts import DataFacts, SwarmFacts
from thinwire_coordinator.planning.plan import Plan
from thinwire_coordinator.planning.problems import check_file
from thinwire_coordinator.planning.star.planner import advise
from thinwire_proto.contract import (
    DecoderSpec,
    DemoSpec,
    LocalMuonSpec,
    ModelSpec,
    RoundSpec,
    RunSpec,
    ScheduleSpec,
)

WRONG = """\
[model]
width = 100
heds = 4
[data]
kind = "token"
corpus_bytes = 5
[schedule]
step = 100
steps = "5"
learning_rate = 3.0
warmup_steps = 1e2
length_ms = 5
[round]
pace = "clok"
[rule]
kind = "local_adamw"
outer_rate = 2.0
[rounds]
x = 1
"""
EXPECTED = """\
3: model.heds: there is no such key; did you mean heads?
5: data.kind: there is no kind 'token'; did you mean tokens?; there are
8: schedule.step: there is no such key; did you mean steps?
9: schedule.steps: input should be a valid integer (it is '5')
10: schedule.learning_rate: input should be less than or equal to 1 (it is 3.0)
11: schedule.warmup_steps: input should be a valid integer (it is 100.0)
12: schedule.length_ms: there is no such key; it belongs into [round]
14: round.pace: input should be 'barrier' or 'clock' (it is 'clok')
18: rounds: there is no such section; did you mean [round]?
"""


FIRST = "[[amend]]\nat = 2\nround.samples = 4\n\n"
"""A first amendment, so that the next one is on line 5."""


def errors_of(folder: Path, text: str) -> list[str]:
    path = folder / "run.toml"
    path.write_text(text)
    return [f"{found.line}: {found.key}: {found.text}" for found in check_file(path).problems]


def test_all_errors_are_explained_at_once_with_their_lines(tmp_path: Path) -> None:
    found = errors_of(tmp_path, WRONG)
    for line, expected in zip(found, EXPECTED.splitlines(), strict=True):
        assert line.startswith(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[round]\npace = clock\n",
            "2: : is not TOML: Invalid value (at line 2, column 8)",
        ),
        ('[model]\npreset = "byte-1"\n', "2: model.preset: there is no preset 'byte-1'; did you mean byte-1"),
        ('[model]\npreset = "byte-1m"\nkind = "llama"\n', "3: model.kind: the preset byte-1m is of kind 'decoder'"),
        ("[model]\npreset = []\n", "2: model.preset: there is no preset []; choose one of"),
        ("[data]\n\ncorpus_bytes = 5\n", "3: data.corpus_bytes: computed by the coordinator; remove it"),
        ("[schedule]\nsteps = 10\n\nwarmup_steps = 10\n", "4: schedule: warmup_steps must be less than steps"),
        ("[round]\nsteps = 10\n", "2: round.steps: there is no such key; it belongs into [schedule]"),
        ("steps = 10\n", "1: steps: there is no such section; the key belongs into [schedule]"),
        ("[rule]\nmicro_batch = 4\n", "2: rule.micro_batch: there is no such key; it is for rule.kind = local_adamw"),
        ("[model]\ntied = 1\n", "2: model.tied: input should be a valid boolean (it is 1)"),
        ("model = 5\n", "1: model: input should be a table"),
        (
            '[data]\nkind = "images"\n',
            '2: : data.kind must be of tokens for model.kind = "decoder"; "images" is of images',
        ),
        ("[model]\nvocabulary = 200\n", "2: : model.vocabulary must be at least 256"),
        ("amend = 5\n", "1: amend: must be a table [[amend]], with `at` and new values such as round.samples = 8"),
        ("[amend]\nat = 5\n", "1: amend: must be a table [[amend]]"),
        ("[[amends]]\nat = 5\n", "1: amends: there is no such section; did you mean [[amend]]?"),
        (FIRST + "[[amend]]\nround.samples = 8\n", "5: amend.at: must be the first step that it holds for"),
        (FIRST + "[[amend]]\nat = true\n", "5: amend.at: must be the first step that it holds for"),
        (FIRST + "[[amend]]\nat = 9\nbecause = 3\n", "5: amend.because: must be a text of at most"),
        (FIRST + "[[amend]]\nat = 9\nsamples = 8\n", "5: amend.samples: is no section; give keys with theirs"),
        (FIRST + "[[amend]]\nat = 9\nrewind = 3\n", "5: amend.rewind: is no section"),
        (FIRST + "[[amend]]\nat = 9\nround.sample = 8\n", "5: amend: round.sample: thinwire "),
        (FIRST + "[[amend]]\nat = 9\nmodel.width = 8\n", "5: amend: model.width cannot change within a run"),
        (FIRST + "[[amend]]\nat = 9\nround.samples = 0\n", "5: amend: samples: input should be greater than"),
        (FIRST + "[[amend]]\nat = 9\nround.samples = 1979-05-27\n", "5: amend: values must be finite numbers, texts"),
        (FIRST + "[[amend]]\nat = 9\nschedule.floor = inf\n", "5: amend: values must be finite numbers, texts"),
        (FIRST + "[[amend]]\nat = 9\n", "5: amend: gives no key a new value, such as round.samples = 8"),
        (FIRST + "[[amend]]\nat = 9\nround = {}\nbecause = 'so'\n", "5: amend: gives no key a new value"),
        (
            FIRST + "[exchange]\nkind = 'gossip'\n[rule]\nkind = 'adamw'\n",
            "1: amend: a run whose exchange is 'gossip' cannot have amendments from its beginning on",
        ),
        (FIRST + "[[amend]]\nat = 200\nround.samples = 8\n", "5: amend: the run ends at step 200, so nothing is left"),
        (FIRST + "[[amend]]\nat = 60\nschedule.steps = 55\n", "5: amend: schedule.steps must be above 60"),
        (
            FIRST + "[[amend]]\nat = 9\ndata.held_out = {}\n",
            "5: amend.data.held_out: a held-out set is added by `thinwire-coordinator amend --held-out`",
        ),
    ],
)
def test_an_error_names_its_line_and_what_to_do(text: str, said: str, tmp_path: Path) -> None:
    (found,) = errors_of(tmp_path, text)
    assert found.startswith(said)


def arguments(*words: str) -> argparse.Namespace:
    return parser().parse_args(["check", *words])


def test_a_run_of_gossip_has_no_figures_of_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[round]\nlength_ms = 50\n[exchange]\nkind = "gossip"\n[rule]\nkind = "adamw"\n')
    check(arguments(str(path), "--up", "0.01"))
    shown = capsys.readouterr().out
    assert "gossip, one-peer-exponential" in shown
    assert "warning: exchange.codec: a message takes" in shown
    assert not any(words in shown for words in ("a round", "demo.k"))


LONG = ScheduleSpec(steps=5_000)
facts_once = lru_cache(facts_of)


def a_plan(run: RunSpec | None = None, model: ModelSpec | None = None, nodes: int = 4, **other: float) -> Plan:
    """A plan that has no warnings, and what differs from it. model: its facts only."""
    run = run or RunSpec(schedule=LONG)
    swarm = SwarmFacts(nodes, other.get("up", 10e6), other.get("down", 50e6), other.get("tokens_s", 10_000.0))
    data = DataFacts({"text": int(other.get("tokens", 1e8))}, 10**8, vocabulary=int(other.get("vocabulary", 256)))
    return plan_of(run, facts_once(model or DecoderSpec()), data, swarm, other.get("memory", 16e9))


def test_a_sensible_run_is_told_only_of_the_rule_that_its_links_have_room_for() -> None:
    (told,) = advise(a_plan())
    assert told.key == "rule.kind"
    assert "sends 345.6 kB a round in place of 21.0 kB" in told.text


def test_each_stage_of_a_run_is_planned_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An amendment brings warnings of its own, and memory, disk and traffic are those of the stage with the most."""
    file, sections = tmp_path / "run.toml", ("[rule]", "[demo]", "[round]")
    later = ("kind = 'local_muon'\nmicro_batch = 64", "", "length_ms = 50\nsamples = 1000\npace = 'clock'")
    first = ("kind = 'local_muon'", "", "length_ms = 10000\npace = 'clock'")
    change = "[[amend]]\nat = 1\nrule.micro_batch = 64\nround.length_ms = 50\nround.samples = 1000\n"
    figures, told = [], []
    for values, more in ((later, ""), (first, change), (first, "")):
        file.write_text("".join(f"{name}\n{text}\n" for name, text in zip(sections, values, strict=True)) + more)
        check(arguments(str(file)))
        out = capsys.readouterr().out
        rows = ("memory", "an hour", "a month", "uplink")
        figures.append([re.findall(rf"{row} +(\S+ \S+)", out) for row in rows])
        told.append(" ".join(line for line in out.splitlines() if "warning: " in line))
    assert figures[0] == figures[1] != figures[2]
    assert "is shorter than its upload" in told[0]
    assert "amend: round.length_ms: a round of 50.0 ms is shorter than its upload" in told[1]
    assert "upload" not in told[2]


def test_amendments_are_in_the_order_of_their_steps_and_only_other_tokens_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    early, late = "[[amend]]\nat = 5\nround.samples = 2\n", "[[amend]]\nat = 9\nschedule.floor = 0.2\n"
    found = []
    for text in (early + late, late + early):
        (tmp_path / "run.toml").write_text(text)
        found.append(check_file(tmp_path / "run.toml").planned)
    assert found[0] == found[1]
    assert [one.at for one in found[0]] == [5, 9]
    check(arguments(str(tmp_path / "run.toml")))
    assert re.search(r"and later +[\d,]+ from step 5 on *\n", capsys.readouterr().out)


def test_an_amendment_that_the_data_forbid_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokens(tmp_path / "data", {"wiki": [4000]}, {"wiki": [1000]})
    text = "[model]\nvocabulary = 512\n[data]\nkind = 'tokens'\nfolder = 'data'\n[[amend]]\nat = 5\n"
    (tmp_path / "run.toml").write_text(text + "data.weights = { wik = 1.0 }\n")
    with pytest.raises(SystemExit):
        check(arguments(str(tmp_path / "run.toml")))
    assert "run.toml:6: error: amend: at 5: data.weights: there is no source 'wik'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "key", "said"),
    [
        (partial(a_plan, up=1e3), "round.length_ms", "is shorter than its upload"),
        (partial(a_plan, up=20e3, down=20e3), "round.length_ms", "leaves little room for its transfers"),
        (
            partial(a_plan, up=100e3, down=100e3),
            "round.base_age_max",
            r"nodes wait for the network for \d+% of each round",
        ),
        (partial(a_plan, memory=0.1e9), "model", "choose a smaller model"),
        (
            partial(a_plan, RunSpec(schedule=ScheduleSpec(steps=5_000, learning_rate=0.02))),
            "schedule.learning_rate",
            "10 times",
        ),
        (partial(a_plan, nodes=16), "round.pace", "waits for the slowest of 16 nodes"),
        (partial(a_plan, RunSpec(schedule=LONG, round=RoundSpec(nodes_max=2))), "round.nodes_max", "only 2 of 4 nodes"),
        (
            partial(a_plan, RunSpec(schedule=LONG, round=RoundSpec(min_contributions=5))),
            "round.min_contributions",
            "waits for 5 nodes, and there are 4",
        ),
        (
            partial(a_plan, RunSpec(schedule=LONG, round=RoundSpec(length_ms=100)), tokens_s=2_000.0),
            "round.length_ms",
            "one sample",
        ),
    ],
)
def test_what_is_unwise_is_warned_of_with_figures(make: Callable[[], Plan], key: str, said: str) -> None:
    """Plans are made by the tests. At collection, each process would import what measures activations: 1.5 s."""
    plan = make()
    found = [advice.text for advice in advise(plan) if advice.key == key]
    assert any(re.search(said, text) for text in found), advise(plan)


def test_a_model_that_begins_from_weights_may_have_another_rate() -> None:
    plan = a_plan(RunSpec(schedule=ScheduleSpec(steps=5_000, learning_rate=2e-5)))
    assert any(advice.key == "schedule.learning_rate" for advice in advise(plan))
    for model in (replace(plan.model, frozen=10**9), replace(plan.model, begins=True)):
        assert not any(advice.key == "schedule.learning_rate" for advice in advise(replace(plan, model=model)))


@pytest.mark.parametrize(("named", "is_unusual"), [(("embed", "head"), False), (("wte",), True)])
def test_an_embedding_that_takes_steps_of_muon_is_warned_of(named: tuple[str, ...], is_unusual: bool) -> None:
    rule = LocalMuonSpec(adamw_for=named)
    plan = a_plan(RunSpec(schedule=LONG, rule=rule, demo=DemoSpec(**rule.DEMO_DEFAULTS)))
    found = [advice.text for advice in advise(plan) if advice.key == "rule.adamw_for"]
    assert bool(found) == is_unusual
    assert all("long as the vocabulary, and Muon's steps" in text for text in found)


def test_an_adapter_whose_tiles_are_nearly_empty_needs_fewer_components() -> None:
    plan = a_plan()
    adapter = replace(plan.model, frozen=10**9)
    narrow = replace(adapter, trained=adapter.components // 8)
    assert not any(advice.key == "demo.k" for advice in advise(replace(plan, model=adapter)))
    (found,) = (advice for advice in advise(replace(plan, model=narrow)) if advice.key == "demo.k")
    assert "k = 12 and update_topk = 40" in found.text
    sized = plan.run.model_copy(update={"demo": DemoSpec(k=96, magnitude="tile")})  # its update_topk must be 0
    stages = [plan.stages[0]._replace(run=sized)]
    narrow_plan = replace(plan, model=narrow, stages=stages)
    (found,) = (advice for advice in advise(narrow_plan) if advice.key == "demo.k")
    assert found.text.endswith("the usual share is k = 12")
