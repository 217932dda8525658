"""The choice: which is taken, how its gain is split, and where it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thinwire_planner.choosing.choice import ITERATIONS, Predicted, axes, predict, take
from thinwire_planner.choosing.plan import (
    gain_of,
    make_plan,
)
from thinwire_planner.methods.method import Forecast, Setting, Variant, all_variants
from thinwire_planner.methods.star import DEMO, RULES, exchange_parts, tokens_of
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.network import Network

PARAMETERS = 885_888


def setting(nodes: int, mbit: float, rtt_ms: float, variation: float = 0.1, compute_s: float = 0.42) -> Setting:
    network = Network.uniform(nodes, mbit * 1e6, rtt_ms / 1000)
    return Setting(PARAMETERS, ComputeTimes.around(compute_s, variation), network, (1.0,) * nodes, 1e9, 1e9)


def made(name: str, seconds: float, looseness: float = 0.0, caution: str = "") -> Predicted:
    forecast = Forecast(seconds, 1.0, ())
    return Predicted(Variant(name, name, lambda _: forecast, False, looseness, caution=caution), forecast)


def test_the_fastest_is_taken_and_of_equals_the_plainest() -> None:
    assert take([made("a", 2.0), made("b", 1.0, 5.0)]).name == "b"
    assert take([made("a", 1.02), made("b", 1.0, 5.0)]).name == "a"


def test_what_a_step_learns_counts_as_much_as_its_seconds() -> None:
    slower, learns_less = made("a", 2.0), made("b", 1.0)
    forecast = replace(learns_less.forecast, tokens=2.2)
    assert take([slower, replace(learns_less, forecast=forecast)]).name == "a"
    assert take([slower, learns_less]).name == "b"


def test_gradients_in_levels_are_taken_where_lines_carry_them_in_the_time_of_computing() -> None:
    """4 nodes, 1M parameters: what a line of 10 Mbit/s carries in half a second counts for little in 20 s."""
    slow, fast = (make_plan(setting(4, 10, 50, compute_s=compute_s)).taken.name for compute_s in (0.05, 20.0))
    assert "merged_muon" in fast
    assert "merged_muon" not in slow


def test_the_coordinators_line_carries_an_update_and_a_contribution_of_each_node() -> None:
    few, (demo, *_) = setting(4, 100, 40), RULES
    parts = dict(exchange_parts(few, demo))
    up, down = (8 * PARAMETERS * each for each in (demo.up, demo.down[4]))
    for what, bits in (("into the coordinator", up), ("out of the coordinator", down)):
        assert 4 * bits < parts[what] * 1e9 < 1.1 * 4 * bits  # with headers


def test_a_variant_with_a_caution_is_passed_over() -> None:
    assert take([made("a", 2.0), made("b", 1.0, caution="diverges")]).name == "a"
    assert take([made("b", 1.0, caution="diverges")]).name == "b"


def test_along_the_axis_of_nodes_a_method_learns_what_it_learns_with_as_many() -> None:
    few = setting(4, 10, 40)
    (demo,) = [one for one in all_variants(few) if one.name == "star, demo, base age 0"]
    (nodes,) = [axis for axis in axes(few) if axis.name == "nodes"]
    found = [demo.forecast(nodes.at(number)).tokens for number in (4, 16)]
    assert found == [tokens_of(DEMO, 0, number) for number in (4, 16)]
    assert found[0] != found[1]


def test_below_a_twentieth_of_a_byte_the_star_wins_and_the_plan_says_why() -> None:
    """A line of 0.9 Mbit/s carries 0.05 bytes a parameter while a step is computed."""
    plan = make_plan(setting(16, 0.9, 20))
    assert plan.setting.affordable_bytes < 0.06
    assert plan.taken.variant.family == "star"
    assert "bytes a parameter one way while a step is computed" in "\n".join(plan.reasons)


def test_a_plan_says_where_most_of_the_gain_is_overlap() -> None:
    plan = make_plan(setting(8, 100, 1, variation=3.0))
    assert plan.gain is not None
    assert plan.gain.overlap_share > 0.5
    assert "most of the gain is overlap" in "\n".join(plan.reasons)


def test_a_plan_says_where_star_and_gossip_both_overlap() -> None:
    plan = make_plan(setting(32, 3, 1, variation=0.05))
    assert "because the star overlaps too" in "\n".join(plan.reasons)


def test_where_lines_cost_nothing_all_reduce_is_taken() -> None:
    plan = make_plan(setting(4, 1e6, 0.001, variation=0.0))
    assert plan.taken.name == "all-reduce, DDP"


def test_a_gain_is_the_product_of_its_factors() -> None:
    where = setting(8, 10, 50)
    found = {one.name: one for one in predict(all_variants(where), where)}
    for name in ("star, demo, base age 1", "gossip, ring, one bit", "gossip, ring, dense, slack 1"):
        gain = gain_of(found[name], found)
        assert gain is not None
        assert gain.total == pytest.approx(gain.exchange * gain.overlap * gain.learning)
        assert gain.exchange * gain.overlap == pytest.approx(found[gain.baseline].seconds / found[name].seconds)


def test_a_gain_is_over_the_faster_all_reduce() -> None:
    """On slow lines that is the one whose rounds grow; and it has no gain over the other."""
    for mbit, name in ((10, "all-reduce, rounds growing to 16 times"), (1e6, "all-reduce, DDP")):
        where = setting(8, mbit, 1, variation=0.0)
        found = {one.name: one for one in predict(all_variants(where), where)}
        gain = gain_of(found["star, demo, base age 1"], found)
        assert gain is not None
        assert gain.baseline == name
        assert gain_of(found["all-reduce, rounds growing to 16 times"], found) is None


def test_the_choice_differs_beyond_each_change() -> None:
    """Also that of all variants, though only the best at the setting are compared along an axis."""
    where = setting(4, 1000, 1, variation=0.02)
    plan = make_plan(where)
    assert plan.changes
    variants = [one.variant for one in plan.by_time]
    by_name = {axis.name: axis for axis in axes(replace(where, iterations_max=ITERATIONS))}  # as the search draws
    for change in plan.changes:
        axis = by_name[change.axis]
        assert (change.value > axis.value) == change.above
        beyond = take(predict(variants, axis.at(change.value)))
        assert beyond.variant.family == change.taken != plan.taken.variant.family


def test_the_plainest_of_all_that_are_about_as_fast_is_taken_whatever_its_family() -> None:
    """The star by the clock is within 3% of the fastest gossip here, and the plainer star is not."""
    plan = make_plan(replace(setting(4, 5, 20, variation=0.027, compute_s=2.0), parameters=1_000_000))
    assert plan.taken is take(plan.by_time)
    assert plan.taken in plan.families
    assert plan.taken.variant.family == "star"
    assert all(change.taken != "star" for change in plan.changes)


@pytest.mark.parametrize("per_host", [1, 8])
def test_a_change_of_the_number_of_nodes_lies_on_the_side_that_it_names(per_host: int) -> None:
    """One host cannot have fewer hosts, and 512 nodes are more than are looked at."""
    nodes = 8 if per_host == 8 else 512
    network = Network.uniform(nodes, 1e6, 20.0, per_host=per_host)
    where = Setting(10**7, ComputeTimes.around(0.1, 0.2), network, (1.0,) * nodes, 1e9, 1e9)
    found = [change for change in make_plan(where).changes if change.axis == "nodes"]
    assert all((change.value > nodes) == change.above for change in found)
    assert bool(found) == (per_host == 8)  # from 16 nodes, take star
