"""Makes a plan: the choice, and the reasons for it in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thinwire_planner.choosing.choice import TIE, Change, Predicted, best_of_families, changes, predict, take
from thinwire_planner.methods.all_reduce import FAMILY as ALL_REDUCE
from thinwire_planner.methods.growth import GROWING
from thinwire_planner.methods.method import Setting, all_variants
from thinwire_planner.methods.star import BY_THE_CLOCK

MEASURED_TOKENS = (
    "tokens: so many times those of Muon with every gradient exchanged for the same loss, with 0.9M parameters and 19 "
    "tokens a parameter, on fresh bases; in shorter runs they differ less (docs/planner.md)"
)
MEASURED_GOSSIP = (
    "what gossip learns was measured beside local_muon in shorter runs, with 16 nodes of one sample, steps of Muon and "
    "the one-peer exponential graph; bf16, int8, and with them slack and other topologies, are taken to need as many "
    "tokens; choose gossip among people who trust each other"
)

MEASURED_GROWTH = (
    "growing rounds begin with the batch of a step here; measured with 4 nodes, in runs of 700 rounds or more and the "
    "batch that learns most from a token; in fewer rounds they learn less"
)


@dataclass(frozen=True)
class Gain:
    """Factors whose product is the gain over the faster all-reduce.

    baseline: its name. exchange: the same method, computing and exchanging in turn, over all-reduce; less than 1 if it
    is slower. overlap: computing meanwhile. learning: what a step learns. overlap_share: the overlap's part of the
    logarithms, 0 where there is no gain.
    """

    baseline: str
    total: float
    exchange: float
    overlap: float
    learning: float

    @property
    def overlap_share(self) -> float:
        logarithms = [math.log(factor) for factor in (self.exchange, self.overlap)]
        rising = sum(max(0.0, one) for one in logarithms)
        return max(0.0, logarithms[1]) / rising if rising else 0.0


def gain_of(taken: Predicted, by_name: Mapping[str, Predicted]) -> Gain | None:
    """The gain of a variant over all-reduce; None if there is none, or if it is one."""
    rings = [one for one in by_name.values() if one.variant.family == ALL_REDUCE]
    if not rings or taken.variant.family == ALL_REDUCE:
        return None
    baseline = min(rings, key=lambda one: one.learning_s)
    turn = by_name.get(taken.variant.without_overlap, taken)
    return Gain(
        baseline.name,
        baseline.learning_s / taken.learning_s,
        baseline.seconds / turn.seconds,
        turn.seconds / taken.seconds,
        baseline.forecast.tokens / taken.forecast.tokens,
    )


AXES = {"rate": "a rate of {} Mbit/s", "round trip": "a round trip of {} ms", "nodes": "{} nodes"}
AXIS_UNITS = {"rate": 1e6, "round trip": 1e-3, "nodes": 1.0}
OVERLAP_MOST = 0.5
ALIKE = 0.1
"""A star this close to the fastest gossip has its gain too."""
BOTH_OVERLAP = ", because the star overlaps too"
NO_CHANGE = "no other rate of the lines, round trip or number of nodes that was looked at changes the choice"


@dataclass(frozen=True)
class Plan:
    """by_time: all forecasts, the one that reaches a loss first at the beginning, those with a caution at the end.
    families: the one to take of each. gain: over all-reduce."""

    setting: Setting
    by_time: tuple[Predicted, ...]
    families: tuple[Predicted, ...]
    taken: Predicted
    gain: Gain | None
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]


def make_plan(setting: Setting) -> Plan:
    """Predict, choose and explain."""
    found = predict(all_variants(setting), setting)
    taken = take(found)
    families = best_of_families(found) | {taken.variant.family: taken}
    gain = gain_of(taken, {one.name: one for one in found})
    ordered = sorted(found, key=lambda one: (bool(one.variant.caution), one.learning_s, one.name))
    elsewhere = changes(setting, found) if setting.nodes > 1 else []
    reasons = _reasons(setting, families, taken, gain) + _passed_over(found, taken)
    if not elsewhere and setting.nodes > 1:
        reasons.append(NO_CHANGE)
    return Plan(
        setting,
        tuple(ordered),
        tuple(families.values()),
        taken,
        gain,
        tuple(reasons),
        tuple(elsewhere),
    )


def change_in_words(change: Change) -> str:
    """For example: "above a rate of 23 Mbit/s, take all-reduce"."""
    where = AXES[change.axis].format(three_digits(change.value / AXIS_UNITS[change.axis]))
    direction = "from" if change.axis == "nodes" else "above"
    below = "with at most" if change.axis == "nodes" else "below"
    return f"{direction if change.above else below} {where}, take {change.taken}"


def _reasons(setting: Setting, families: Mapping[str, Predicted], taken: Predicted, gain: Gain | None) -> list[str]:
    shares = taken.name.endswith(BY_THE_CLOCK) and len(set(setting.speeds)) > 1
    computing_s, who = (setting.together_s, "all nodes together") if shares else (setting.mean_s, "a node")
    reasons = [
        f"{taken.name}: {seconds_in_words(taken.seconds)} a step, of which computing takes {who} "
        f"{seconds_in_words(computing_s)}"
    ]
    if shares:
        reasons.append(
            "by the clock, a slow node contributes fewer samples and weighs less; round.samples must be as many as the "
            "fastest node computes in a round"
        )
    if gain is not None:
        reasons.append(_gain_in_words(gain))
    reasons += _against_the_star(setting, families, taken)
    if taken.variant.family == "gossip":
        reasons.append(MEASURED_GOSSIP)
    if GROWING in taken.name or (gain is not None and GROWING in gain.baseline):
        reasons.append(MEASURED_GROWTH)
    reasons.append(MEASURED_TOKENS)
    return reasons


def _passed_over(found: Sequence[Predicted], taken: Predicted) -> list[str]:
    """The fastest of those with a caution, if it is faster than the one that is taken."""
    others = [one for one in found if one.variant.caution]
    if not others or (fastest := take(others)).learning_s * (1 + TIE) >= taken.learning_s:
        return []
    step = seconds_in_words(fastest.seconds)
    return [f"faster, and not recommended: {fastest.name}, {step} a step; {fastest.variant.caution}"]


def _gain_in_words(gain: Gain) -> str:
    if gain.total <= 1:
        return f"{gain.baseline} would take {gain.total:.0%} of that time"
    text = (
        f"{gain.total:.2f} times as fast to the same loss as {gain.baseline}: {gain.exchange:.2f} times by its "
        f"exchange, {gain.overlap:.2f} times by not waiting for it, and {gain.learning:.2f} times by what a step learns"
    )
    return f"{text}; so most of the gain is overlap" if gain.overlap_share > OVERLAP_MOST else text


def _against_the_star(setting: Setting, families: Mapping[str, Predicted], taken: Predicted) -> list[str]:
    """Compares star and gossip by what decides between them: overlap, which both have, and bytes."""
    star, gossip = families.get("star"), families.get("gossip")
    if star is None or gossip is None:
        return []
    reasons = []
    if abs(star.learning_s / gossip.learning_s - 1) <= ALIKE:
        both = f"star ({seconds_in_words(star.learning_s)}) and gossip ({seconds_in_words(gossip.learning_s)})"
        reasons.append(f"{both} learn about as fast{BOTH_OVERLAP if star.variant.is_overlapped else ''}")
    affordable = setting.affordable_bytes
    ours, theirs = (one.forecast.bytes_a_parameter / 2 for one in (star, gossip))
    is_on_lines = setting.network.per_host == 1  # nodes of one host exchange beside its line
    if is_on_lines and affordable < theirs:
        reasons.append(
            f"a line carries {affordable:.2g} bytes a parameter one way while a step is computed; {gossip.name} needs "
            f"{theirs:.2g}, and the star {ours:.2g}" + ("" if affordable >= ours else ", which is also too much")
        )
    return reasons


def three_digits(number: float) -> str:
    """A number with three digits, or all of those before the point."""
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def seconds_in_words(seconds: float) -> str:
    """Seconds with three digits, in ms if there are few."""
    return f"{three_digits(1000 * seconds)} ms" if seconds < 0.1 else f"{three_digits(seconds)} s"
