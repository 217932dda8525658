"""Writes a commented run file, and the figures of a plan as rows for its comments and for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from thinwire_common.units import human_bytes, human_count, human_seconds
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.planning.plan import Plan, base_memories, fit_of
from thinwire_coordinator.planning.planned import AMEND
from thinwire_proto.pass_memory import card_words

COMMENT_COLUMN = 32
HOUR_SECONDS, MONTH_SECONDS = 3_600.0, 30 * 86_400.0
Key = tuple[str, Any, str]
"""(key, value, comment) of one line."""
Row = tuple[str, str]


class Words(NamedTuple):
    """What an exchange says of a plan. step: the name of a step. of_run, of_node: further rows. uplink: of the
    coordinator."""

    step: str
    of_run: list[Row]
    of_node: list[Row]
    uplink: str


def rows_of(plan: Plan, words: Words) -> dict[str, list[Row]]:
    """The figures of a plan, by what they are about."""
    facts, run, step = plan.model, plan.run, plan.step
    sent, received = plan.most(lambda one: one.step.sent_bytes), plan.most(lambda one: one.step.received_bytes)
    hour = plan.most(lambda one: one.step.sent_bytes / one.step.seconds * HOUR_SECONDS)
    month = plan.most(lambda one: one.step.both_ways_bytes / one.step.seconds * MONTH_SECONDS)
    first_bytes = plan.snapshot_bytes + facts.base_bytes
    later = [
        f"{stage.step.tokens:,.0f} from step {stage.begins:,} on"
        for before, stage in pairwise(plan.stages)
        if stage.step.tokens != before.step.tokens
    ]
    frozen = f", on a frozen base of {human_count(facts.frozen)}" if facts.frozen else ""
    passes = f", {plan.passes:.2g} passes over the data" if plan.passes else ""
    return {
        "the run": [
            ("model", f"{run.model.in_words()}: {human_count(facts.trained)} parameters are trained{frozen}"),
            ("nodes", f"{plan.swarm.nodes} of {plan.swarm.tokens_s:,.0f} tokens/s"),
            *words.of_run,
            (words.step, f"{human_seconds(step.seconds)}, {step.tokens:,.0f} tokens of all nodes"),
            *([("and later", ", ".join(later))] if later else ()),
            ("run", f"{plan.steps:,} steps, {human_count(plan.tokens)} tokens{passes}"),
            ("until the end", human_seconds(plan.seconds)),
        ],
        "each volunteer": [
            *(_site_rows(plan) if plan.swarm.cards > 1 else _memory_rows(plan)),
            ("disk", f"{human_bytes(plan.node_disk_bytes)} at most"),
            ("to begin", f"{human_bytes(first_bytes)} down, and the data as they are needed"),
            (f"a {words.step}", f"{human_bytes(sent)} up, {human_bytes(received)} down"),
            *words.of_node,
            ("an hour", f"{human_bytes(hour)} up"),
            ("a month", f"{human_bytes(month)} up and down, day and night"),
            ("the whole run", f"{human_bytes(plan.both_ways_bytes)} up and down"),
        ],
        "the coordinator": [
            ("memory", human_bytes(plan.coordinator_memory_bytes)),
            ("disk", f"{human_bytes(plan.coordinator_disk_bytes)} at the end of the run"),
            ("uplink", words.uplink),
        ],
    }


def _memory_rows(plan: Plan) -> list[Row]:
    run, facts, count = plan.heaviest, plan.model, plan.micro_batch
    by_bits = [f"{human_bytes(size)} with {bits} bits" for bits, size in base_memories(run, facts).items()]
    one_sample = f"{', '.join(by_bits)} of the base, for one sample of {facts.context:,} tokens"
    at_once = f"{human_bytes(plan.node_memory_bytes)} with {count} {'sample' if count == 1 else 'samples'} at once"
    return [
        ("memory", one_sample if by_bits else at_once),
        *((f"a card of {card}", how) for card, how in card_words(run, facts.size, facts.memories).items()),
    ]


def _site_rows(plan: Plan) -> list[Row]:
    nodes, tokens = plan.swarm.nodes, plan.step.tokens
    return [
        ("cards", f"{plan.swarm.cards} of {human_bytes(plan.memory_bytes)}"),
        ("the model", fit_of(plan.run, plan.model, plan.memory_bytes, plan.swarm.cards).words),
        ("speed", f"{plan.swarm.tokens_s:,.0f} tokens/s of all its cards, if the lines between them are fast"),
        ("its share", f"{tokens / nodes:,.0f} of {tokens:,.0f} tokens, {1 / nodes:.3g} of what all do"),
    ]


def run_text(
    rows: Mapping[str, Iterable[Row]],
    keys: Mapping[str, Iterable[Key]],
    command: str,
    sources: Sequence[str],
    planned: Sequence[Order] = (),
) -> str:
    """The text of a run file. keys: by section. command: how it was made. sources: of the data. planned: its
    amendments."""
    lines = [
        f"# Made by: {command}",
        "#",
        "# Edit what you like, then run `thinwire-coordinator check` on this file. docs/run-file.md has every key.",
        "# Figures are estimates for the nodes and links given above; `check` works them out again.",
        "#",
    ]
    for title, of_title in rows.items():
        lines += [f"# {title.capitalize()}", *(f"#   {name:<14} {value}" for name, value in of_title), "#"]
    for section, of_section in keys.items():
        lines += ["", f"[{section}]", *map(_line, of_section), *(_mixture(sources) if section == "data" else ())]
    for order in planned:
        changes = {**order.changes, "because": order.because}
        at = _line(("at", order.at, "from this step on"))
        lines += ["", f"[[{AMEND}]]", at, *(_line((key, value, "")) for key, value in changes.items())]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def schedule_keys(plan: Plan, *, steps: str, rate: str) -> list[Key]:
    """The lines of [schedule]. steps, rate: the beginning of their comments."""
    falls = plan.run.schedule.shape != "constant"
    schedule, tokens = plan.run.schedule, plan.tokens / max(1, plan.model.trained + plan.model.frozen)
    return [
        ("steps", schedule.steps, f"{steps}{tokens:.3g} tokens for each parameter"),
        ("learning_rate", schedule.learning_rate, f"the peak{rate}"),
        ("warmup_steps", schedule.warmup_steps, "then the rate falls as a cosine" if falls else ""),
        *([] if falls else [("shape", schedule.shape, "until the last amendment")]),
        ("floor", schedule.floor, f"{'to' if falls else 'then it falls to'} this part of the peak"),
    ]


def _mixture(sources: Sequence[str]) -> list[str]:
    if len(sources) < 2:
        return []
    shares = ", ".join(f"{json.dumps(name)} = 1.0" for name in sources)
    meaning = "# how often each source is drawn; without it, by its size; one that it leaves out is only measured"
    return [f"# weights = {{ {shares} }}", meaning]


def _line(line: Key) -> str:
    key, value, comment = line
    text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text:<{COMMENT_COLUMN - 1}} # {comment}" if comment else text
