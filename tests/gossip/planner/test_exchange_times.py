"""The formula of each method against a sum that is written out, and the sharing of lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.planning import facts_of_preset
from thinwire_coordinator.planning.star.choice import nodes_max
from thinwire_coordinator.planning.star.traffic import contribution_bytes, update_bytes
from thinwire_planner.choosing.choice import Predicted, predict
from thinwire_planner.cli.plan_file import sizes_of
from thinwire_planner.methods.all_reduce import BUCKET_BYTES, exchange_s, hidden_s
from thinwire_planner.methods.gossip import CODECS, codec_of, gossip_variant
from thinwire_planner.methods.growth import mean_growth
from thinwire_planner.methods.local_steps import LOCAL_STEPS
from thinwire_planner.methods.method import Rates, Setting, all_variants
from thinwire_planner.methods.star import RULES, exchange_parts, star, step_s
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.link import OVERHEAD, transfer_s
from thinwire_planner.timing.network import Network
from thinwire_proto.contract import TILE_EDGE, DemoSpec, LocalMuonSpec, MergedMuonSpec
from thinwire_proto.errors import ConfigError

BITS = 8 * (1 + OVERHEAD)
PARAMETERS = 1_000_000


def setting(nodes: int = 8, rate: float = 1e8, rtt_s: float = 0.02, variation: float = 0.2, **other: object) -> Setting:
    made = Setting(
        PARAMETERS,
        ComputeTimes.around(0.5, variation),
        Network.uniform(nodes, rate, rtt_s),
        (1.0,) * nodes,
        1e9,
        1e9,
        rates=Rates(1e8, 1e8, 1e9),
    )
    return replace(made, **other)  # type: ignore[arg-type]


def by_name(name: str, where: Setting) -> Predicted:
    (found,) = predict([variant for variant in all_variants(where) if variant.name == name], where)
    return found


def seconds(name: str, where: Setting) -> float:
    return by_name(name, where).seconds


def test_all_reduce_sends_its_parts_around_the_ring() -> None:
    where = setting()
    part = 4 * PARAMETERS / 8
    first = float(transfer_s(part, 0.02, 1e8, idle_s=where.slowest_s))
    others = sum(float(transfer_s(part, 0.02, 1e8)) for _ in range(13))
    assert exchange_s(where) == pytest.approx(first + others)
    assert seconds("all-reduce, DDP", where) == pytest.approx(where.slowest_s + first + others)


def test_all_reduce_hides_all_but_one_bucket_behind_the_last_backward_pass() -> None:
    large = setting(rate=1e10, parameters=4 * BUCKET_BYTES // 4, passes=2)
    assert hidden_s(large) == pytest.approx(0.5 * 2 / 3 / 2 * 3 / 4)
    assert hidden_s(setting()) == 0
    hidden = large.slowest_s + exchange_s(large) - min(hidden_s(large), exchange_s(large))
    assert seconds("all-reduce, DDP", large) == pytest.approx(hidden)


def test_the_star_adds_up_at_age_0_and_takes_the_longer_at_age_1() -> None:
    where = setting(rate=1e6)
    up, update = 0.0231 * PARAMETERS, 0.0677 * PARAMETERS
    idle = where.mean_s
    exchange = (
        float(transfer_s(up, 0.02, 1e6, idle_s=idle))
        + up * 8 * BITS / 1e9
        + 8 * PARAMETERS / 1e9
        + 8 * update * BITS / 1e9
        + float(transfer_s(update, 0.02, 1e6, idle_s=idle))
    )
    own = PARAMETERS * (1 / 1e8 + 1 / 1e8)
    assert seconds("star, demo, base age 0", where) == pytest.approx(where.slowest_s + own + exchange)
    assert seconds("star, demo, base age 1", where) == pytest.approx(max(where.slowest_s + own, exchange))
    assert seconds("star, demo, by the clock", where) == pytest.approx(max(where.mean_s + own, exchange))


@pytest.mark.parametrize(("slow", "computing_s"), [(1.0, 0.5), (0.1, 5 / 9.1), (0.01, 5 / 9.01)])
def test_by_the_clock_a_slow_node_helps_as_much_as_it_can(slow: float, computing_s: float) -> None:
    """Nine nodes of 0.5 s compute ten gradients in 5/9 s, so a tenth one can only make that shorter."""
    where = setting(10, rate=1e10, speeds=(1.0,) * 9 + (slow,))
    own = PARAMETERS * (1 / 1e8 + 1 / 1e8)
    assert seconds("star, demo, by the clock", where) == pytest.approx(computing_s + own)
    assert sum(computing_s / 0.5 * speed for speed in where.speeds) == pytest.approx(10)


def test_an_update_of_more_nodes_has_more_bytes() -> None:
    down = RULES[0].down
    assert [setting(nodes).by_nodes(down) for nodes in (1, 4, 64, 1000)] == [0.0232, 0.0628, 0.0799, 0.0799]
    assert setting(32).by_nodes(down) == pytest.approx((0.0736 + 0.0799) / 2)


def test_rounds_of_local_steps_divide_the_exchange_and_steps_of_muon_wait_for_it() -> None:
    where = setting(4, variation=0.0)
    exchanges = {rule.name: sum(one for _, one in exchange_parts(where, rule, rule.local_steps)) for rule in RULES}
    own = PARAMETERS * (1 / 1e8 + 1 / 1e8)
    assert seconds("star, local_muon, base age 0", where) == pytest.approx(0.5 + (own + exchanges["local_muon"]) / 4)
    for levels in (7, 19):
        name = f"merged_muon in {levels} levels"
        assert seconds(f"star, {name}, base age 0", where) == pytest.approx(0.5 + own + step_s(where) + exchanges[name])
    faster = setting(4, rates=Rates(1e8, 1e8, 1e9, step=1e12))
    assert step_s(faster) == pytest.approx(step_s(where) * 26e9 / 1e12)


@pytest.mark.parametrize("preset", ["byte-1m", "byte-10m", "llama-124m", "byte-1b"])
def test_the_step_of_muon_takes_the_operations_of_its_products_or_about_as_many(preset: str) -> None:
    parameters, operations = sizes_of(preset)
    assert operations == MergedMuonSpec().step_flops(facts_of_preset(preset).parameters)
    known, guessed = setting(parameters=parameters, step_operations=operations), setting(parameters=parameters)
    assert step_s(known) == pytest.approx(operations / known.rates.step)
    assert 0.5 < step_s(guessed) / step_s(known) < 2


@pytest.mark.parametrize(
    ("name", "demo"),
    [
        ("local_muon", LocalMuonSpec.DEMO_DEFAULTS),
        ("merged_muon in 7 levels", MergedMuonSpec.DEMO_DEFAULTS),
        ("merged_muon in 19 levels", MergedMuonSpec.FINE),
    ],
)
def test_bytes_of_the_star_are_those_that_init_forecasts(name: str, demo: dict[str, Any]) -> None:
    facts, spec = facts_of_preset("byte-10m"), DemoSpec.model_validate(demo)
    (rule,) = [one for one in RULES if one.name == name]
    assert rule.up == pytest.approx(contribution_bytes(facts, spec) / facts.trained, rel=0.005)
    for nodes, each in rule.down.items():
        assert each == pytest.approx(update_bytes(facts, spec, nodes) / facts.trained, rel=0.005)


ROUNDS: dict[int, dict[int, float]] = {8: {1: 8, 2: 4, 4: 4, 8: 12}, 16: {1: 8, 2: 4, 4: 4, 8: 3, 16: 4.5}}
"""Rounds of each size in 128 steps, by how many times as large they become."""


def test_rounds_that_grow_exchange_once_in_so_many_steps() -> None:
    where, own = setting(4, variation=0.0), PARAMETERS * (1 / 1e8 + 1 / 1e8)
    for times, rounds in ROUNDS.items():
        in_all = sum(rounds.values())
        assert mean_growth(times) == pytest.approx(128 / in_all)
        (rule,) = [rule for rule in RULES if rule.growth == times]
        exchanges = sum(n * one for g, n in rounds.items() for _, one in exchange_parts(where, rule.at(g), g))
        found = by_name(f"star, {rule.name}, base age 0", where)
        assert found.seconds == pytest.approx(0.5 + (in_all * (own + step_s(where)) + exchanges) / 128)
        travels = sum(n * (rule.at(g).up + rule.at(g).down[4]) for g, n in rounds.items())
        assert found.forecast.bytes_a_parameter == pytest.approx(travels / 128)
        assert sum(one for _, one in found.forecast.parts) == pytest.approx(found.seconds)
        assert found.forecast.tokens == rule.tokens[4]


def test_no_method_has_more_nodes_than_init_gives_it() -> None:
    for rule in RULES:
        most = nodes_max(
            DemoSpec(magnitude="tile", k=TILE_EDGE**2, update_levels=1, vote_levels=rule.vote_levels), 10**6
        )
        assert rule.nodes_max == most
        for nodes, is_there in ((most, True), (most + 1, False)):
            names = [one.name for one in predict(star(setting(nodes)), setting(nodes))]
            assert (f"star, {rule.name}, base age 0" in names) == is_there


def test_an_all_reduce_of_growing_rounds_comes_once_a_round() -> None:
    where = setting(4, variation=0.0)
    for times, rounds in ROUNDS.items():
        exchanges = sum(n * exchange_s(where, g) for g, n in rounds.items())
        assert seconds(f"all-reduce, rounds growing to {times} times", where) == pytest.approx(0.5 + exchanges / 128)


def test_votes_have_seven_levels_until_rounds_have_eight_times_the_samples() -> None:
    assert [rule.vote_levels for rule in map(RULES[-1].at, (1, 2, 4, 8, 16))] == [3, 3, 3, 9, 9]
    assert RULES[-1].name == "merged_muon in 7 to 19 levels, rounds growing to 16 times"


def test_a_round_that_grew_hides_as_much_as_a_step() -> None:
    """The last backward pass, once a round; and its connections were idle for all of its steps."""
    where, rounds = setting(rate=1e9, variation=0.0, parameters=50_000_000, passes=2), ROUNDS[8]
    took = [n * (g * 0.5 + exchange_s(where, g) - hidden_s(where)) for g, n in rounds.items()]
    assert 0 < hidden_s(where) < exchange_s(where)
    assert seconds("all-reduce, rounds growing to 8 times", where) == pytest.approx(sum(took) / 128)


def test_connections_ramp_up_after_all_steps_of_a_round() -> None:
    where = setting(rate=1e8, rtt_s=0.2, variation=0.0, compute=ComputeTimes.around(0.1, 0.0))
    (fine,) = [rule for rule in RULES if rule.growth == 8]
    of_one, of_eight = (dict(exchange_parts(where, fine, steps)) for steps in (1, 8))
    assert of_eight["upload"] > of_one["upload"]
    assert exchange_s(where, 8) > exchange_s(where, 1)


def test_nodes_wait_less_for_the_slowest_in_large_rounds() -> None:
    where = setting(rate=1e12, rtt_s=0.0)
    assert where.mean_s < seconds("all-reduce, rounds growing to 8 times", where) < seconds("all-reduce, DDP", where)


def test_local_steps_divide_the_exchange() -> None:
    where = setting(variation=0.0)
    name = f"local steps of Muon, H = {LOCAL_STEPS}"
    assert seconds(name, where) == pytest.approx(0.5 + exchange_s(where, LOCAL_STEPS) / LOCAL_STEPS)


def test_gossip_on_fast_lines_takes_little_more_than_computing() -> None:
    where = setting(rate=1e12, rtt_s=0.0, variation=0.0)
    for codec in CODECS:
        seconds = gossip_variant("ring", codec).forecast(where).seconds
        assert seconds == pytest.approx(0.5 + PARAMETERS * codec.coding_s_a_parameter)
        assert 0.5 < seconds < 0.52


def test_a_slow_line_bounds_gossip_whatever_the_slack() -> None:
    where = setting(rate=1e7)
    for slack in (0, 1, 2):
        found = gossip_variant("one-peer-exponential", CODECS[0], slack=slack).forecast(where)
        assert found.seconds >= 4 * PARAMETERS * BITS / 1e7 * (1 - 1e-9)


def test_gossip_counts_the_bytes_of_its_edges() -> None:
    where = setting(8)
    assert gossip_variant("complete", CODECS[0]).forecast(where).bytes_a_parameter == 2 * 7 * 4
    assert gossip_variant("one-peer-exponential", CODECS[0]).forecast(where).bytes_a_parameter == 8


def test_edges_of_a_host_share_its_line() -> None:
    network = Network.uniform(8, 1e8, 0.0, per_host=4)
    senders, receivers = np.asarray([0, 1, 2, 0]), np.asarray([4, 5, 6, 3])
    times = network.edges_s(senders, receivers, 1e6, 0.0)
    assert times[:3] == pytest.approx([1e6 * BITS / (1e8 / 3)] * 3)
    assert times[3] < 0.01
    busy = 3 * 1e6 * BITS / 1e8
    np.testing.assert_allclose(network.busy_s(senders, receivers, 1e6), [[busy, 0.0], [0.0, busy]])


def test_a_thousand_nodes_are_predicted() -> None:
    where = setting(1000)
    assert seconds("gossip, one-peer-exponential, one bit", where) > 0.5
    assert seconds("star, demo, base age 1", where) > 0.5


def test_codecs_of_a_contract_have_the_bytes_of_their_kind() -> None:
    assert codec_of("sign").bytes_a_parameter == 0.126
    assert codec_of("dense").bytes_a_parameter == 4
    with pytest.raises(ConfigError, match="'zip' are not known"):
        codec_of("zip")


@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("steps", [1, 4, 16, 1000])
def test_waiting_once_in_many_steps_is_never_less_than_computing_nor_more_than_waiting_each(
    nodes: int, steps: int
) -> None:
    """Compute times that vary much are drawn unevenly."""
    where = Setting(1000, ComputeTimes.around(1.0, 10.0), Network.uniform(nodes, 1e9, 0.001), (1.0,) * nodes, 1e9, 1e9)
    assert where.mean_s * (1 - 1e-9) <= where.waiting_s(steps) <= where.slowest_s
    assert where.waiting_s(1) == where.slowest_s
