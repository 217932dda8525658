"""`init` and `check` of a run of gossip: its figures, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import pytest
import torch

from support.planning import chosen as chosen_of
from thinwire_coordinator.cli.check import check
from thinwire_coordinator.cli.init import init
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.planning.completion import facts_of
from thinwire_coordinator.planning.exchanges import plan_of
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.gossip.planner import advise, rule_for
from thinwire_coordinator.planning.plan import Plan
from thinwire_coordinator.planning.problems import check_file, read_run
from thinwire_proto.contract import Parameter, RunSpec
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.models.presets import PRESETS
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import make_codec

MODEL = PRESETS["byte-1m"]
DATA = DataFacts({"text": 10**8}, 10**8, vocabulary=256)


@lru_cache
def facts() -> ModelFacts:
    return facts_of(MODEL)


def a_swarm(nodes: int = 4, up: float = 10e6, tokens_s: float = 28e3) -> SwarmFacts:
    return SwarmFacts(nodes, up, 5 * up, tokens_s)


def chosen(swarm: SwarmFacts, **asked: str) -> RunSpec:
    return chosen_of(facts(), swarm, DATA, "gossip", **asked)


def a_plan(swarm: SwarmFacts | None = None, *, memory: float = 16e9, **sections: dict[str, object]) -> Plan:
    """The plan of the run that `init` chooses, with these keys of its sections instead."""
    swarm = swarm or a_swarm()
    run = chosen(swarm)
    changed = {name: getattr(run, name).model_copy(update=keys) for name, keys in sections.items()}
    return plan_of(run.model_copy(update=changed), facts(), DATA, swarm, memory)


@pytest.mark.parametrize(
    ("model", "nodes", "samples", "kind"),
    [
        (facts(), 8, 4, "muon"),
        (facts(), 7, 4, "adamw"),
        (facts(), 8, 1, "adamw"),  # orthogonalizing would take longer than the gradient
        (replace(facts(), frozen=10**9), 8, 4, "adamw"),
        (replace(facts(), begins=True), 8, 4, "adamw"),
        (replace(facts(), parameters=facts().parameters[:1]), 8, 4, "adamw"),
    ],
)
def test_nodes_take_muon_where_it_is_known_to_learn_more_and_costs_little(
    model: ModelFacts, nodes: int, samples: int, kind: str
) -> None:
    rule = rule_for(model, nodes, samples)
    assert (rule.kind, rule.samples) == (kind, samples)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (replace(facts(), frozen=10**9), "an adapter with steps of Muon yet; take --rule adamw"),
        (replace(facts(), parameters=facts().parameters[:1]), "no matrix that could take steps of Muon"),
    ],
)
def test_muon_needs_a_matrix_from_scratch(model: ModelFacts, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rule_for(model, 8, 4, "muon")


@pytest.mark.parametrize("codec", ["dense", "bf16", "int8", "sign"])
def test_the_predicted_bytes_are_those_of_the_codec(codec: str) -> None:
    layout = TileLayout([Parameter(name="w", shape=(1024, 1024))])
    difference = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(1))
    body = make_codec(codec, layout).encode(difference)
    plan = a_plan(exchange={"codec": codec})
    assert plan.step.sent_bytes / plan.model.trained == pytest.approx(len(body) / layout.parameters, rel=0.02)


def test_a_sensible_run_has_no_warnings() -> None:
    assert advise(a_plan(a_swarm(up=100e6, tokens_s=10e3))) == []


@pytest.mark.parametrize(
    ("planned", "key", "said"),
    [
        (partial(a_plan, exchange={"codec": "dense"}), "exchange.codec", '"sign" needs one bit a parameter'),
        (partial(a_plan, exchange={"patience_ms": 100}), "exchange.patience_ms", "less than 2 steps of"),
        (
            partial(a_plan, round={"min_contributions": 5}),
            "round.min_contributions",
            "waits for 5 nodes, and there are 4",
        ),
        (partial(a_plan, round={"nodes_max": 2}), "round.nodes_max", "only 2 of 4 nodes"),
        (partial(a_plan, memory=0.1e9), "model", "choose a smaller model"),
    ],
)
def test_what_does_not_fit_is_warned_of_with_figures(planned: Callable[[], Plan], key: str, said: str) -> None:
    given = advise(planned())
    found = [advice.text for advice in given if advice.key == key]
    assert any(re.search(said, text) for text in found), given


def run_init(*words: str) -> None:
    init(parser().parse_args(["init", *words]))


def run_check(*words: str) -> None:
    check(parser().parse_args(["check", *words]))


def test_the_file_that_init_writes_has_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.toml"
    run_init("--exchange", "gossip", "--out", str(out), "--nodes", "8", "--rtt", "80")
    text, run = out.read_text(), read_run(out)
    assert isinstance(run.exchange, GossipSpec)
    assert run.rule.kind == "muon"
    assert "each node steps by itself, with Muon" in text
    assert run.exchange.gradient_pull == 0.5
    assert "[demo]" not in text
    assert "init --exchange gossip --nodes 8 --up 10 --down 50 --rtt 80" in text
    assert check_file(out).problems == ()
    capsys.readouterr()
    run_check(str(out), "--nodes", "8", "--rtt", "80")
    shown = capsys.readouterr().out
    assert f"{out}: no errors" in shown


def test_check_names_the_lines_of_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.toml"
    out.write_text('[demo]\nk = 32\n[round]\nbase_age_max = 1\n[exchange]\nkind = "gossip"\n[rule]\nkind = "adamw"\n')
    run_check(str(out))
    shown = capsys.readouterr().out
    assert f"{out}:1: warning: demo: has no effect in gossip" in shown
    assert f"{out}:4: warning: round.base_age_max: has no effect" in shown
