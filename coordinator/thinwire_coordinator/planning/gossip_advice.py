"""Warns of what will be slow, unwise or without effect in a run without a centre. Every rule is one function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from thinwire_common.units import human_bytes
from thinwire_coordinator.planning.advice import RULES_OF_ANY_EXCHANGE, VOLUME_MAX, Advice
from thinwire_coordinator.planning.gossip_forecast import exchange_of
from thinwire_coordinator.planning.gossip_plan import NODES_LEAST, PATIENCE_S_MAX, PATIENCE_STEPS, GossipPlan
from thinwire_coordinator.planning.gossip_words import beside_the_star
from thinwire_coordinator.planning.settings import GRADIENT_PULL
from thinwire_planner.choosing.plan import seconds_in_words

PATIENCE_STEPS_LEAST = 2
RELAY_BITS_S_MAX = 100e6
PULL_MAX = 0.7
"""In the one sweep, 0.6 was best, and 0.8 worse than 0 (docs/log/decentralized.md)."""
SMALL_CODEC_BYTES = 0.2
"""Bytes a parameter of a message up to which no other codec of full strength is much smaller."""
WITHOUT_EFFECT = {
    "demo": "no votes are sent: exchange.codec says what a message carries",
    "round.base_age_max": "exchange.slack says how many iterations a message may be late",
    "round.samples": "rule.samples says how many samples an iteration has",
    "round.weight_max": "no votes are weighed",
}
"""Sections and keys that the star reads alone, and what to know instead."""


def advise_gossip(plan: GossipPlan) -> list[Advice]:
    """All warnings about a run without a centre."""
    return [advice for rule in RULES for advice in rule(plan)]


def without_effect(given: Iterable[tuple[str, ...]]) -> Iterator[Advice]:
    """Warnings about sections and keys that such a run does not read. given: the paths of all keys of a file."""
    for path in given:
        key = ".".join(path)
        if key in WITHOUT_EFFECT:
            yield Advice(key, f"has no effect without a centre, because {WITHOUT_EFFECT[key]}; remove it")


def _star(plan: GossipPlan) -> Iterator[Advice]:
    if plan.star.is_shorter:
        yield Advice("exchange.kind", beside_the_star(plan))


def _codec(plan: GossipPlan) -> Iterator[Advice]:
    figures, exchange = plan.figures, exchange_of(plan.run)[0]
    if figures.message_s <= figures.computing_s:
        return
    text = (
        f"a message takes {seconds_in_words(figures.message_s)} at {plan.swarm.up_bits_s / 1e6:g} Mbit/s, and the "
        f"computing beside it {seconds_in_words(figures.computing_s)}, so nodes wait"
    )
    if figures.bytes_a_parameter / 2 > SMALL_CODEC_BYTES and exchange.codec != "sign":
        yield Advice("exchange.codec", f'{text}; "sign" needs one bit a parameter')
    else:
        yield Advice("rule.samples", f"{text}; more samples in an iteration exchange less often")


def _pull(plan: GossipPlan) -> Iterator[Advice]:
    pull = exchange_of(plan.run)[0].gradient_pull
    if pull > PULL_MAX:
        yield Advice(
            "exchange.gradient_pull",
            f"{pull:g} lets a node compute its gradients where it hardly sees its own newest steps; where it was "
            f"measured, 0.8 learned less than 0, and {GRADIENT_PULL:g} more",
        )


def _patience(plan: GossipPlan) -> Iterator[Advice]:
    step_s, patience_s = plan.figures.step_s, exchange_of(plan.run)[0].patience_ms / 1000
    if patience_s < PATIENCE_STEPS_LEAST * step_s:
        yield Advice(
            "exchange.patience_ms",
            f"{seconds_in_words(patience_s)} is less than {PATIENCE_STEPS_LEAST} steps of {seconds_in_words(step_s)}, "
            f"so peers that are only slow are left out; {_longer(step_s)}",
        )


def _longer(step_s: float) -> str:
    if PATIENCE_STEPS_LEAST * step_s > PATIENCE_S_MAX:
        most = f"{seconds_in_words(PATIENCE_S_MAX)} is the most that can be given"
        return f"{most}, so shorten the step: fewer samples (rule.samples), or a smaller codec (exchange.codec)"
    return f"give {round(1000 * min(PATIENCE_STEPS * step_s, PATIENCE_S_MAX))} or more"


def _beat(plan: GossipPlan) -> Iterator[Advice]:
    beat_s, step_s = plan.run.round.length_s, plan.figures.step_s
    if beat_s < step_s:
        yield Advice(
            "round.length_ms",
            f"a beat of {seconds_in_words(beat_s)} is shorter than a step of {seconds_in_words(step_s)}, so most "
            "reports say nothing new; give a longer one",
        )


def _nodes(plan: GossipPlan) -> Iterator[Advice]:
    nodes, rounds = plan.swarm.nodes, plan.run.round
    if nodes < NODES_LEAST:
        yield Advice("exchange.kind", "one node has no peers to average with")
    if nodes < rounds.min_contributions:
        yield Advice(
            "round.min_contributions",
            f"the first topology waits for {rounds.min_contributions} nodes, and there are {nodes}: it never begins",
        )
    if nodes > rounds.nodes_max:
        yield Advice("round.nodes_max", f"only {rounds.nodes_max} of {nodes} nodes may take part")


def _relay(plan: GossipPlan) -> Iterator[Advice]:
    bits_s = plan.figures.relay_bits_s
    if bits_s > RELAY_BITS_S_MAX:
        yield Advice(
            "exchange.kind",
            f"if no node listens for peers, the coordinator hands on {bits_s / 1e6:,.0f} Mbit/s; ask volunteers who "
            "can open a port to start their node with --peers",
        )


def _volume(plan: GossipPlan) -> Iterator[Advice]:
    figures = plan.figures
    volume = min(figures.run_bytes, figures.bytes_a_month)
    if volume > VOLUME_MAX:
        yield Advice(
            "exchange.codec",
            f"a node that runs all the time sends and receives {human_bytes(volume)} a month, and some home links "
            f"allow {human_bytes(VOLUME_MAX)}; more samples in an iteration (rule.samples) take less, and so does a "
            "smaller codec",
        )


RULES: tuple[Callable[[GossipPlan], Iterator[Advice]], ...] = (
    *RULES_OF_ANY_EXCHANGE,
    _star,
    _codec,
    _pull,
    _patience,
    _beat,
    _nodes,
    _relay,
    _volume,
)
