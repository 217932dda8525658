"""`init` and `check` of a run without a centre: its figures, the sentence about the star, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import pytest
import torch

from thinwire_common.units import human_bytes
from thinwire_coordinator.cli.check import check
from thinwire_coordinator.cli.init import init
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.cli.run_file import read_run
from thinwire_coordinator.planning.choice import choose
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.footprint import facts_of
from thinwire_coordinator.planning.forecast import forecast
from thinwire_coordinator.planning.gossip_advice import advise_gossip, without_effect
from thinwire_coordinator.planning.gossip_plan import GossipPlan, choose_gossip, gossip_plan_of
from thinwire_coordinator.planning.gossip_words import beside_the_star, volunteer_rows
from thinwire_coordinator.planning.own_rule_choice import own_rule
from thinwire_coordinator.planning.problems import check_file
from thinwire_coordinator.planning.settings import MORE_PASSES_MAX
from thinwire_proto.contract import CorpusSpec, Parameter, RunSpec
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


def chosen(swarm: SwarmFacts) -> RunSpec:
    return choose_gossip(MODEL, CorpusSpec(), facts(), DATA, swarm)


def a_plan(swarm: SwarmFacts | None = None, *, memory: float = 16e9, **sections: dict[str, object]) -> GossipPlan:
    """The plan of the run that `init` chooses, with these keys of its sections instead."""
    swarm = swarm or a_swarm()
    run = chosen(swarm)
    changed = {name: getattr(run, name).model_copy(update=keys) for name, keys in sections.items()}
    return gossip_plan_of(run.model_copy(update=changed), facts(), DATA, swarm, memory)


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
    rule = own_rule(model, nodes, samples)
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
        own_rule(model, 8, 4, "muon")


def test_steps_of_muon_take_their_time() -> None:
    swarm, found = a_swarm(16), []
    for kind in ("adamw", "muon"):
        run = choose_gossip(MODEL, CorpusSpec(), facts(), DATA, swarm, rule=kind)
        found.append(gossip_plan_of(run, facts(), DATA, swarm, 16e9))
    adamw, muon = found
    assert 1.2 < muon.figures.computing_s / adamw.figures.computing_s < 1 + MORE_PASSES_MAX
    assert muon.star == adamw.star


@pytest.mark.parametrize("codec", ["dense", "bf16", "int8", "sign", "dct-sign", "topk:64", "topk:16"])
def test_the_foretold_bytes_are_those_of_the_codec(codec: str) -> None:
    layout = TileLayout([Parameter(name="w", shape=(1024, 1024))])
    difference = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(1))
    body = make_codec(codec, layout).encode(difference)
    assert a_plan(exchange={"codec": codec}).figures.bytes_a_parameter == pytest.approx(
        2 * len(body) / layout.parameters, rel=0.02
    )


@pytest.mark.parametrize(("topology", "peers"), [("one-peer-exponential", 3), ("ring", 2), ("complete", 7)])
def test_a_late_node_is_told_of_its_snapshots(topology: str, peers: int) -> None:
    plan = a_plan(a_swarm(8), exchange={"topology": topology})
    assert plan.figures.peers == peers
    assert plan.figures.new_peer_bytes == 16 * facts().trained
    said = dict(volunteer_rows(plan))["a new peer"]
    assert said == f"14.2 MB up and down, once; a node that joins late, or was away, has {peers} of them"


def test_the_forecast_adds_up() -> None:
    plan = a_plan()
    figures = plan.figures
    assert figures.step_s >= max(figures.computing_s, figures.message_s)
    assert figures.tokens == pytest.approx(figures.tokens_a_step * plan.run.schedule.steps)
    assert figures.tokens == pytest.approx(20 * facts().trained, rel=0.01)
    assert figures.relay_bits_s == pytest.approx(4 * 8 * figures.step_bytes / 2 / figures.step_s)


def test_a_volunteer_is_told_the_bytes_of_an_hour() -> None:
    plan = a_plan()
    steps = 3600 / plan.figures.step_s
    assert dict(volunteer_rows(plan))["an hour"] == f"{human_bytes(steps * plan.figures.step_bytes)} up and down"


@pytest.mark.parametrize(("nodes", "up"), [(4, 10e6), (16, 100e6)])
def test_the_star_beside_a_run_is_the_one_that_init_writes(nodes: int, up: float) -> None:
    swarm = a_swarm(nodes, up=up)
    plan = a_plan(swarm)
    star = forecast(choose(MODEL, CorpusSpec(), facts(), DATA, swarm, memory_bytes=16e9), facts(), DATA, swarm)
    assert plan.star.run_s == pytest.approx(star.run_s, rel=0.02)
    assert plan.star.run_bytes == pytest.approx(star.run_bytes, rel=0.02)
    assert plan.figures.tokens == pytest.approx(star.tokens, rel=0.02)


def test_the_star_is_better_below_the_rate_that_the_sentence_names() -> None:
    plan = a_plan(a_swarm(up=10e6))
    below = plan.star.shorter_below_bits_s
    assert f"the star is better below {below / 1e6:.3g} Mbit/s up" in beside_the_star(plan)
    for factor, is_better in ((0.98, True), (1.02, False)):
        swarm = replace(plan.swarm, up_bits_s=factor * below, down_bits_s=5 * factor * below)
        there = gossip_plan_of(plan.run, facts(), DATA, swarm, 16e9)
        assert ("the star is better here" in beside_the_star(there)) is is_better
        assert ("exchange.kind" in {advice.key for advice in advise_gossip(there)}) is is_better


def test_a_rate_is_named_only_where_there_is_one() -> None:
    plan = a_plan()
    never = replace(plan, star=replace(plan.star, shorter_below_bits_s=0.0))
    assert "the star is better at no lower rate of the lines: at 10 Mbit/s its run" in beside_the_star(never)


def test_a_sensible_run_has_no_warnings() -> None:
    assert advise_gossip(a_plan(a_swarm(up=100e6, tokens_s=10e3))) == []


@pytest.mark.parametrize(
    ("planned", "key", "said"),
    [
        (partial(a_plan, exchange={"codec": "dense"}), "exchange.codec", '"sign" needs one bit a parameter'),
        (partial(a_plan, a_swarm(up=1e5)), "rule.samples", "more samples in an iteration exchange less often"),
        (
            partial(a_plan, exchange={"patience_ms": 100}),
            "exchange.patience_ms",
            r"less than 2 steps of .* give \d+ or more",
        ),
        (
            partial(a_plan, exchange={"gradient_pull": 0.8}),
            "exchange.gradient_pull",
            "0.8 learned less than 0, and 0.5",
        ),
        (partial(a_plan, round={"length_ms": 50}), "round.length_ms", "shorter than a step"),
        (
            partial(a_plan, round={"min_contributions": 5}),
            "round.min_contributions",
            "waits for 5 nodes, and there are 4",
        ),
        (partial(a_plan, round={"nodes_max": 2}), "round.nodes_max", "only 2 of 4 nodes"),
        (partial(a_plan, a_swarm(64, up=100e6)), "exchange.kind", "the coordinator hands on .* Mbit/s"),
        (partial(a_plan, schedule={"steps": 10**7}), "exchange.codec", "sends and receives .* a month"),
        (partial(a_plan, memory=0.1e9), "model", "choose a smaller model"),
    ],
)
def test_what_does_not_fit_is_warned_of_with_figures(planned: Callable[[], GossipPlan], key: str, said: str) -> None:
    given = advise_gossip(planned())
    found = [advice.text for advice in given if advice.key == key]
    assert any(re.search(said, text) for text in found), given


def test_keys_of_the_star_alone_have_no_effect() -> None:
    given = [("demo",), ("demo", "k"), ("round",), ("round", "base_age_max"), ("round", "length_ms")]
    assert [advice.key for advice in without_effect(given)] == ["demo", "round.base_age_max"]


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
    assert "the star is better" in text
    assert check_file(out).problems == ()
    capsys.readouterr()
    run_check(str(out), "--nodes", "8", "--rtt", "80")
    shown = capsys.readouterr().out
    assert "or the star" in shown
    assert f"{out}: no errors" in shown


def test_the_optimizer_can_be_chosen(tmp_path: Path) -> None:
    out = tmp_path / "run.toml"
    run_init("--exchange", "gossip", "--rule", "adamw", "--out", str(out))
    run = read_run(out)
    assert run.rule.kind == "adamw"
    assert isinstance(run.exchange, GossipSpec)
    assert run.exchange.gradient_pull == 0  # with which it was measured to learn less
    assert "init --rule adamw --exchange gossip" in out.read_text()


def test_check_names_the_lines_of_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.toml"
    out.write_text('[demo]\nk = 32\n[round]\nbase_age_max = 1\n[exchange]\nkind = "gossip"\n[rule]\nkind = "adamw"\n')
    run_check(str(out))
    shown = capsys.readouterr().out
    assert f"{out}:1: warning: demo: has no effect without a centre" in shown
    assert f"{out}:4: warning: round.base_age_max: has no effect" in shown


def test_a_topology_that_cannot_join_so_many_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.toml"
    out.write_text('[exchange]\nkind = "gossip"\ntopology = "complete"\n[rule]\nkind = "adamw"\n')
    with pytest.raises(SystemExit):
        run_check(str(out), "--nodes", "200")
    assert f"{out}:1: error: exchange: planner: a complete graph" in capsys.readouterr().out


def test_more_nodes_than_a_run_can_have_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match="at most 4,095 nodes, and there are 8,190"):
        run_init("--exchange", "gossip", "--out", str(out), "--nodes", "8190")
    out.write_text('[exchange]\nkind = "gossip"\n[rule]\nkind = "adamw"\n')
    with pytest.raises(SystemExit):
        run_check(str(out), "--nodes", "100000")
    assert f"{out}:1: error: exchange: a run has at most 8,192 nodes" in capsys.readouterr().out


def test_nearly_the_most_nodes_get_a_run_that_admits_them() -> None:
    assert chosen(a_swarm(4092)).round.nodes_max == 4095


@pytest.mark.parametrize("step_s", [600, 1500, 10**6])
def test_no_longer_patience_is_advised_than_a_file_may_have(step_s: float) -> None:
    plan = a_plan(a_swarm(tokens_s=4 * 256 / step_s), exchange={"patience_ms": 1000})
    (text,) = [one.text for one in advise_gossip(plan) if one.key == "exchange.patience_ms"]
    given = re.search(r"give (\d+) or more", text)
    assert (given is not None) == (2 * step_s < 3600), text
    if given is not None:
        GossipSpec(patience_ms=int(given[1]))
    else:
        assert "is the most that can be given, so shorten the step" in text


def test_one_node_cannot_be_without_a_centre(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs 2 nodes or more"):
        run_init("--exchange", "gossip", "--out", str(tmp_path / "run.toml"), "--nodes", "1")
