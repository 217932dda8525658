"""The coordinator's star.

    exchange = t(up) + Σup/D₀ + merge + n·U/U₀ + t(U)
    base age 0: T = (E[max Σ_H C] + exchange)/H      nodes wait for the update
    base age 1: T = max(E[max Σ_H C], exchange)/H    nodes compute the next round meanwhile
    by the clock, n/Σ 1/E[C] stands in place of E[max C]: slow nodes contribute fewer samples, and nobody waits
    where rounds grow, the same with g·H in place of H, and one step of the replica

up and U: bytes of a contribution and of an update, by the rule; D₀, U₀: the coordinator's line; H: local steps of a
round. A node's own arithmetic is added to what computing takes, and with `merged_muon` the step that every replica
takes: 30·m²·n operations for a matrix of m × n, m ≤ n, about 30 times the parameters times the model's width.

A round by the clock ends after its length, always. Until then, a node computes samples one after the other, and its
contribution weighs as many as it has. The work of a step is n gradients, whoever computes them. In a second a node
computes 1/E[C] of one, and these rates add up: n gradients take n/Σ 1/E[C]. The mean of the nodes' times would be right
for equal nodes only: one node of 100 s beside nine of 1 s would make a step ten times as long, though the nine need no
more than 1.11 s for ten gradients. Two assumptions: the contract's `round.samples` is what the fastest node computes in
a round, because further samples add no weight; and no sample takes longer than the base age allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from thinwire_planner.methods.growth import FINE_FROM, growth_in_words, over_stages
from thinwire_planner.methods.method import METHODS, Forecast, Setting, Variant, by_nodes
from thinwire_planner.timing.link import transfer_s, wire_bits
from thinwire_proto.contract import DemoRuleSpec, LocalMuonSpec, MergedMuonSpec, RoundSpec
from thinwire_proto.contract.exchanges.star import most_nodes
from thinwire_proto.errors import ConfigError

FAMILY = "star"
DEMO, LOCAL_MUON, MERGED_MUON = DemoRuleSpec().kind, LocalMuonSpec().kind, MergedMuonSpec().kind
LOCAL_STEPS = 4
"""Of `local_muon` in a round, as in docs/convergence."""


@dataclass(frozen=True)
class StarRule:
    """A rule of the star, as `thinwire-coordinator init` sets it.

    kind, vote_levels: of its contract. up: bytes a parameter of a contribution. down: of an update, by the number of
    nodes. tokens: as in `Forecast`, by the number of nodes. local_steps: of a round. growth: by how many times as large
    its rounds become. begins: the rule of the rounds before `FINE_FROM`, if that is another.
    """

    kind: str
    up: float
    down: Mapping[int, float]
    tokens: Mapping[int, float]
    local_steps: int = 1
    vote_levels: int = 0
    growth: int = 1
    begins: StarRule | None = None

    @property
    def name(self) -> str:
        first = f"{2 * self.begins.vote_levels + 1} to " if self.begins else ""
        levels = f" in {first}{2 * self.vote_levels + 1} levels" if self.vote_levels else ""
        return f"{self.kind}{levels}{growth_in_words(self.growth)}"

    @property
    def nodes_max(self) -> int:
        """The most nodes of a run with the default weights."""
        return most_nodes(max(1, self.vote_levels), RoundSpec().weight_max)

    def at(self, larger: int) -> StarRule:
        """The rule of rounds that are so many times as large as the first."""
        return self.begins if self.begins and larger < FINE_FROM[self.growth] else self

    @property
    def takes_step(self) -> bool:
        """Whether every replica takes a step of Muon on fresh gradients."""
        return self.kind == MERGED_MUON


_SEVEN = StarRule(
    MERGED_MUON,
    0.200,
    {1: 0.257, 2: 0.282, 4: 0.352, 8: 0.382, 16: 0.370},
    {4: 1.59, 16: 1.14},
    vote_levels=3,
)
_NINETEEN = StarRule(
    MERGED_MUON,
    0.390,
    {1: 0.418, 2: 0.503, 4: 0.512},
    {4: 1.12, 16: 1.01},
    vote_levels=9,
)
RULES = (
    StarRule(
        DEMO,
        0.0231,
        {1: 0.0232, 2: 0.0405, 4: 0.0628, 8: 0.0677, 16: 0.0736, 64: 0.0799},
        {4: 2.31, 16: 2.44},
    ),
    StarRule(
        LOCAL_MUON,
        0.128,
        {1: 0.126, 2: 0.188, 4: 0.257, 8: 0.293, 16: 0.237},
        {4: 2.19, 16: 1.78},
        local_steps=LOCAL_STEPS,
    ),
    _SEVEN,
    _NINETEEN,
    replace(_NINETEEN, tokens={4: 1.08}, growth=8),
    replace(_NINETEEN, tokens={4: 1.12}, growth=16, begins=_SEVEN),
)
"""Bytes as in docs/performance.md and as `init` forecasts them. Tokens with 0.9M parameters and 19 tokens a parameter,
nodes of four samples (docs/convergence)."""
BY_THE_CLOCK = ", by the clock"
"""The end of the names of variants in which no node waits for another."""


def tokens_of(kind: str, vote_levels: int, nodes: int, growth: int = 1) -> float:
    """`Forecast.tokens` of a rule whose votes have about so many levels to either side of 0; 0: they are signs. growth:
    by how many times as large its rounds become; the next larger one that was measured counts, or the largest."""
    of_kind = [rule for rule in RULES if rule.kind == kind]
    levels = min((rule.vote_levels for rule in of_kind), key=lambda known: abs(known - vote_levels))
    alike = {rule.growth: rule for rule in of_kind if rule.vote_levels == levels}
    known = min((one for one in alike if one >= growth), default=max(alike))
    return by_nodes(alike[known].tokens, nodes)


def own_s(setting: Setting) -> float:
    """A node's own arithmetic in a round: compress and apply."""
    return setting.parameters * (1 / setting.rates.compress + 1 / setting.rates.apply)


def step_s(setting: Setting) -> float:
    """The exact step of Muon of a replica. If its operations are not known: a decoder of width w has about w/64 layers
    of 12·w² parameters each, so w is about (64/12 · parameters)^⅓."""
    width = (64 / 12 * setting.parameters) ** (1 / 3)
    return (setting.step_operations or 30 * width * setting.parameters) / setting.rates.step


def node_transfer_s(setting: Setting, size_bytes: float, *, upward: bool, steps: int = 1) -> float:
    """A message over the slowest line of a node, after the computing of a round of so many steps."""
    network = setting.network
    rate = (network.up_bits_s if upward else network.down_bits_s).min() / network.per_host
    return float(
        transfer_s(
            size_bytes,
            network.typical_rtt_s,
            rate,
            loss=network.loss,
            congestion=network.congestion,
            idle_s=steps * setting.mean_s,
        )
    )


def exchange_parts(setting: Setting, rule: StarRule, steps: int = 1) -> tuple[tuple[str, float], ...]:
    """The way of the votes in, the merge, and the way of the update out, after so many steps."""
    up, update = (setting.parameters * each for each in (rule.up, setting.by_nodes(rule.down)))
    return (
        ("upload", node_transfer_s(setting, up, upward=True, steps=steps)),
        ("into the coordinator", wire_bits(up) * setting.nodes / setting.coordinator_down_bits_s),
        ("merge", setting.nodes * setting.parameters / setting.rates.merge),
        ("out of the coordinator", wire_bits(update) * setting.nodes / setting.coordinator_up_bits_s),
        ("download", node_transfer_s(setting, update, upward=False, steps=steps)),
    )


def _forecast(setting: Setting, *, rule: StarRule, base_age: int, waits: bool) -> Forecast:
    if setting.nodes > rule.nodes_max:
        raise ConfigError(f"{rule.name} has at most {rule.nodes_max} nodes")
    if rule.growth == 1:
        return _round(setting, rule, rule.local_steps, base_age, waits=waits)
    tokens = setting.by_nodes(rule.tokens)
    return over_stages(rule.growth, tokens, lambda times: _round(setting, rule.at(times), times, base_age, waits=waits))


def _round(setting: Setting, rule: StarRule, steps: int, base_age: int, *, waits: bool) -> Forecast:
    """A step of rounds that have so many."""
    computing = (setting.waiting_s(steps) if waits else setting.together_s) * steps + own_s(setting)
    computing += step_s(setting) if rule.takes_step else 0.0
    parts = exchange_parts(setting, rule, steps)
    exchange = sum(seconds for _, seconds in parts)
    return Forecast(
        (max(computing, exchange) if base_age else computing + exchange) / steps,
        (rule.up + setting.by_nodes(rule.down)) / steps,
        tuple((name, seconds / steps) for name, seconds in (("computing", computing), *parts)),
        setting.by_nodes(rule.tokens),
    )


@METHODS.register("star")
def star(setting: Setting) -> Iterator[Variant]:
    for rule in RULES:
        fresh = f"star, {rule.name}, base age 0"
        in_turn = partial(_forecast, rule=rule, base_age=0)
        looseness = 1.0 + 0.01 * setting.by_nodes(rule.tokens) + (0.005 if rule.growth > 1 else 0.0)
        yield Variant(fresh, FAMILY, partial(in_turn, waits=True), False, looseness)
        clock = f"star, {rule.name}{BY_THE_CLOCK}"
        if rule.takes_step:  # on fresh gradients alone
            yield Variant(clock, FAMILY, partial(in_turn, waits=False), False, looseness + 0.1, fresh)
            continue
        overlapped = partial(_forecast, rule=rule, base_age=1)
        for name, waits, more in ((f"star, {rule.name}, base age 1", True, 0.1), (clock, False, 0.2)):
            yield Variant(name, FAMILY, partial(overlapped, waits=waits), True, looseness + more, fresh)
