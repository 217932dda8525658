"""The figures of a run without a centre as lines of a small table, and the lines of its run file."""

from __future__ import annotations

from typing import Any

from thinwire_common.units import human_bytes, human_count, human_seconds
from thinwire_coordinator.planning.figures_in_words import Row
from thinwire_coordinator.planning.forecast import HOUR_SECONDS
from thinwire_coordinator.planning.gossip_forecast import exchange_of
from thinwire_coordinator.planning.gossip_plan import GossipPlan
from thinwire_coordinator.planning.own_rule_choice import ADAMW, MUON
from thinwire_planner.choosing.plan import seconds_in_words

Key = tuple[str, Any, str]
"""(key, value, comment) of one line."""
STEPS = {ADAMW: "AdamW", MUON: "Muon"}


def beside_the_star(plan: GossipPlan) -> str:
    """One sentence that says when the star would be better."""
    figures, star = plan.figures, plan.star
    takes = (
        f"its run of as many tokens takes {human_seconds(star.run_s)} in place of {human_seconds(figures.run_s)}, and "
        f"{human_bytes(star.run_bytes)} of each node in place of {human_bytes(figures.run_bytes)}"
    )
    if star.is_shorter:
        return f"the star is better here: {takes}"
    at = f"at {plan.swarm.up_bits_s / 1e6:g} Mbit/s {takes}"
    if star.shorter_below_bits_s:
        return f"the star is better below {star.shorter_below_bits_s / 1e6:.3g} Mbit/s up: {at}"
    return f"by the time of a run, the star is better at no lower rate of the lines: {at}"


def run_rows(plan: GossipPlan) -> list[Row]:
    """The figures of the whole run."""
    figures, facts, run = plan.figures, plan.model, plan.run
    exchange, _ = exchange_of(run)
    message = seconds_in_words(figures.message_s)
    passes = f", {figures.passes:.2g} passes over the data" if figures.passes else ""
    frozen = f", on a frozen base of {human_count(facts.frozen)}" if facts.frozen else ""
    return [
        ("model", f"{run.model.in_words()}: {human_count(facts.trained)} parameters are trained{frozen}"),
        ("nodes", f"{plan.swarm.nodes} of {plan.swarm.tokens_s:,.0f} tokens/s"),
        ("exchange", f"without a centre, {exchange.topology}, codec {exchange.codec}"),
        ("step", f"{seconds_in_words(figures.step_s)}, {figures.tokens_a_step:,.0f} tokens of all nodes"),
        ("", f"computing {seconds_in_words(figures.computing_s)}, and a message beside it {message}"),
        ("run", f"{run.schedule.steps:,} steps, {human_count(figures.tokens)} tokens{passes}"),
        ("until the end", human_seconds(figures.run_s)),
        ("or the star", f"{beside_the_star(plan)}. The loss after as many tokens differs: docs/convergence"),
    ]


def volunteer_rows(plan: GossipPlan) -> list[Row]:
    """The needs of each volunteer."""
    figures = plan.figures
    return [
        ("memory", f"{human_bytes(figures.node_memory_bytes)} with --micro-batch {plan.micro_batch}"),
        ("disk", f"{human_bytes(figures.node_disk_bytes)} at most"),
        ("to begin", f"{human_bytes(figures.first_download_bytes)} down, and the data as they are needed"),
        ("a step", f"{human_bytes(figures.step_bytes / 2)} up, {human_bytes(figures.step_bytes / 2)} down"),
        (
            "a new peer",
            f"{human_bytes(figures.new_peer_bytes)} up and down, once; a node that joins late, or was away, has "
            f"{figures.peers} of them",
        ),
        ("an hour", f"{human_bytes(figures.step_bytes * HOUR_SECONDS / figures.step_s)} up and down"),
        ("a month", f"{human_bytes(figures.bytes_a_month)} up and down, day and night"),
        ("the whole run", f"{human_bytes(figures.run_bytes)} up and down"),
    ]


def coordinator_rows(plan: GossipPlan) -> list[Row]:
    """The needs of the coordinator's machine."""
    figures = plan.figures
    return [
        ("memory", f"{human_bytes(figures.coordinator_memory_bytes)}, and 128 MiB for the relay"),
        ("disk", f"{human_bytes(figures.coordinator_disk_bytes)} at the end of the run"),
        ("uplink", f"{figures.relay_bits_s / 1e6:,.3g} Mbit/s if no node listens for peers (--peers)"),
    ]


def keys_of(plan: GossipPlan) -> dict[str, list[Key]]:
    """The lines of the run file, by section, after model and data."""
    run, figures = plan.run, plan.figures
    exchange, rule = exchange_of(run)
    tokens = figures.tokens / max(1, plan.model.trained + plan.model.frozen)
    return {
        "schedule": [
            ("steps", run.schedule.steps, f"iterations of each node; {tokens:.3g} tokens for each parameter"),
            ("learning_rate", run.schedule.learning_rate, f"the peak, of {STEPS[rule.kind]}"),
            ("warmup_steps", run.schedule.warmup_steps, "then the rate falls as a cosine"),
            ("floor", run.schedule.floor, "to this part of the peak"),
        ],
        "round": [
            ("pace", run.round.pace, "beats follow a clock"),
            ("length_ms", run.round.length_ms, "a beat: each node reports once"),
            ("min_contributions", run.round.min_contributions, "nodes that the first topology waits for"),
            ("nodes_max", run.round.nodes_max, "a node needs memory for edges to so many"),
        ],
        "rule": [
            ("kind", rule.kind, f"each node steps by itself, with {STEPS[rule.kind]}"),
            ("samples", rule.samples, "of a node in an iteration"),
        ],
        "exchange": [
            ("kind", exchange.kind, "without a centre; for nodes that trust each other"),
            ("topology", exchange.topology, "who mixes with whom"),
            ("codec", exchange.codec, f"{figures.bytes_a_parameter:.3g} bytes a parameter and step, up and down"),
            ("gradient_pull", exchange.gradient_pull, "gradients are computed so far towards the peers; costs no byte"),
            ("patience_ms", exchange.patience_ms, "for a peer's message; then the peer is left out"),
        ],
    }
