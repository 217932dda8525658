"""The figures of a plan as lines of a small table, for a terminal and for the comments of a run file."""

from __future__ import annotations

from thinwire_common.units import human_bytes, human_count, human_seconds
from thinwire_coordinator.planning.advice import Plan

Row = tuple[str, str]


def run_rows(plan: Plan) -> list[Row]:
    """The figures of the whole run."""
    figures, facts, run = plan.figures, plan.model, plan.run
    frozen = f", on a frozen base of {human_count(facts.frozen)}" if facts.frozen else ""
    passes = f", {figures.passes:.2g} passes over the data" if figures.passes else ""
    return [
        ("model", f"{run.model.in_words()}: {human_count(facts.trained)} parameters are trained{frozen}"),
        ("nodes", f"{plan.swarm.nodes} of {plan.swarm.tokens_s:,.0f} tokens/s"),
        ("round", f"{human_seconds(figures.round_s)}, {figures.tokens_a_round:,.0f} tokens of all nodes"),
        ("run", f"{run.schedule.steps:,} steps, {human_count(figures.tokens)} tokens{passes}"),
        ("until the end", human_seconds(figures.run_s)),
    ]


def volunteer_rows(plan: Plan) -> list[Row]:
    """The needs of each volunteer."""
    figures = plan.figures
    return [
        ("memory", f"{human_bytes(figures.node_memory_bytes)} with --micro-batch {plan.micro_batch}"),
        ("disk", f"{human_bytes(figures.node_disk_bytes)} at most"),
        ("to begin", f"{human_bytes(figures.first_download_bytes)} down, and the data as they are needed"),
        ("a round", f"{human_bytes(figures.upload_bytes)} up, {human_bytes(figures.download_bytes)} down"),
        ("an hour", f"{human_bytes(figures.upload_bytes_an_hour)} up"),
        ("a month", f"{human_bytes(figures.bytes_a_month)} up and down, day and night"),
        ("the whole run", f"{human_bytes(figures.run_bytes)} up and down"),
    ]


def coordinator_rows(plan: Plan) -> list[Row]:
    """The needs of the coordinator's machine."""
    figures = plan.figures
    return [
        ("memory", human_bytes(figures.coordinator_memory_bytes)),
        ("disk", f"{human_bytes(figures.coordinator_disk_bytes)} at the end of the run"),
        ("uplink", f"{figures.coordinator_up_bits_s / 1e6:,.3g} Mbit/s on average"),
    ]
