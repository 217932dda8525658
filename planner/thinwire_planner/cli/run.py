"""The command `thinwire plan`: reads the setting, makes a plan, and prints it as a table or JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from thinwire_common.doctor_report import read_doctor_report
from thinwire_common.options import Options, add_options, add_program_options, option, read_options
from thinwire_common.units import human_count
from thinwire_planner.choosing.choice import Predicted
from thinwire_planner.choosing.plan import Plan, change_in_words, make_plan, seconds_in_words
from thinwire_planner.cli.plan_file import (
    MEGA,
    NODES_MAX,
    PARAMETERS_MAX,
    POSITIVE_MAX,
    RTT_MS_MAX,
    parse,
    read_document,
    setting_of,
)
from thinwire_planner.timing.compute import VARIATION_MAX
from thinwire_proto.errors import ConfigError

FORMAT = 1


def document_of(plan: Plan) -> dict[str, Any]:
    setting = plan.setting
    return {
        "format": FORMAT,
        "setting": {
            "parameters": setting.parameters,
            "nodes": setting.nodes,
            "compute_mean_s": setting.mean_s,
            "compute_slowest_s": setting.slowest_s,
            "affordable_bytes_a_parameter": setting.affordable_bytes,
        },
        "take": _predicted(plan.taken),
        "gain": None if plan.gain is None else vars(plan.gain) | {"overlap_share": plan.gain.overlap_share},
        "reasons": list(plan.reasons),
        "changes": [vars(change) | {"text": change_in_words(change)} for change in plan.changes],
        "families": [one.name for one in plan.families],
        "predictions": [_predicted(one) for one in plan.by_time],
    }


def _predicted(one: Predicted) -> dict[str, Any]:
    return {
        "name": one.name,
        "family": one.variant.family,
        "seconds": one.seconds,
        "tokens": one.forecast.tokens,
        "learning_seconds": one.learning_s,
        "bytes_a_parameter": one.forecast.bytes_a_parameter,
        "parts": dict(one.forecast.parts),
        "caution": one.variant.caution,
    }


def print_plan(plan: Plan, console: Console, *, lists_all: bool) -> None:
    setting = plan.setting
    mean, slowest = seconds_in_words(setting.mean_s), seconds_in_words(setting.slowest_s)
    nodes = "1 node" if setting.nodes == 1 else f"{setting.nodes} nodes"
    console.print(
        f"{nodes}, {human_count(setting.parameters)} parameters; computing {mean} a step, the slowest of all {slowest}"
    )
    shown = plan.by_time if lists_all else _best(plan)
    console.print(table(plan, shown))
    cautions = {one.variant.caution: one.variant.family for one in shown if one.variant.caution}
    for caution, family in cautions.items():
        console.print(f"not recommended: {family}: {caution}", soft_wrap=True)
    console.print(f"take: {plan.taken.name}", style="bold", soft_wrap=True)
    for line in (*plan.reasons, *map(change_in_words, plan.changes)):
        console.print(f"  {line}", soft_wrap=True)


def table(plan: Plan, rows: tuple[Predicted, ...]) -> Table:
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    found.add_column("method", overflow="fold")
    found.add_column("a step", justify="right", no_wrap=True)
    found.add_column("tokens", justify="right", no_wrap=True)
    found.add_column("same loss", justify="right")
    found.add_column("bytes a parameter", justify="right")
    for one in rows:
        found.add_row(
            one.name,
            seconds_in_words(one.seconds),
            f"× {one.forecast.tokens:.2f}" if not one.variant.caution else "?",
            seconds_in_words(one.learning_s) if not one.variant.caution else "?",
            f"{one.forecast.bytes_a_parameter:.3g}",
            style="bold" if one is plan.taken or one.name == plan.taken.name else None,
        )
    return found


def _best(plan: Plan) -> tuple[Predicted, ...]:
    """The best of each family, and what they are compared with: the fastest of each method that is not gossip."""
    shown = {one.name for one in (*plan.families, plan.taken)}
    others = [one for one in plan.by_time if one.variant.family != "gossip"]
    methods = {one.variant.without_overlap or one.name: one.name for one in reversed(others)}
    shown |= {*methods.values(), *(one.variant.without_overlap for one in plan.families)}
    return tuple(one for one in plan.by_time if one.name in shown)


KEYS = {
    "preset": "model.preset",
    "parameters": "model.parameters",
    "nodes": "nodes.count",
    "per_host": "nodes.per_host",
    "compute": "compute.seconds",
    "variation": "compute.variation",
    "up": "nodes.up_mbit",
    "down": "nodes.down_mbit",
    "rtt": "nodes.rtt_ms",
    "lost": "nodes.lost_percent",
}
"""The key of the file that each option sets."""
INSTEAD = {"preset": "parameters", "parameters": "preset"}
"""An option removes the file's key that says the same in another way."""


def parser() -> argparse.ArgumentParser:
    """Build the parser. The parsed arguments have a `command`: a function that takes them."""
    parser = argparse.ArgumentParser("thinwire", description="The command `thinwire`.")
    add_program_options(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    what = "predict how long every exchange takes to the same loss, and say which to take"
    plan = commands.add_parser("plan", help=what)
    add_options(plan, PlanOptions)
    plan.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    plan.add_argument("--all", action="store_true", help="list all variants, and not only the best of each kind")
    plan.set_defaults(command=_plan)
    return parser


def _plan(arguments: argparse.Namespace) -> None:
    """Make a plan and show it. Raises ThinwireError."""
    options = read_options(PlanOptions, arguments)
    found, source = document(options), str(options.file or "the options")
    plan = make_plan(setting_of(parse(found, source)))
    if arguments.json:
        print(json.dumps(document_of(plan), indent=1))
    else:
        print_plan(plan, Console(highlight=False, markup=False), lists_all=arguments.all)


def document(options: PlanOptions) -> dict[str, Any]:
    """The file's document with the options in it. Raises ConfigError."""
    found: dict[str, Any] = read_document(options.file) if options.file is not None else {}
    given = {name: value for name in KEYS if (value := getattr(options, name)) is not None}
    given = (_measured(options.machine) if options.machine is not None else {}) | given
    for name, value in given.items():
        section, _, key = KEYS[name].partition(".")
        inside = found.setdefault(section, {})
        if isinstance(inside, dict):
            if INSTEAD.get(name) not in given:
                inside.pop(INSTEAD.get(name), None)
            inside[key] = value
    return found


def _measured(machine: Path) -> dict[str, float]:
    """The options that a doctor's report gives: those of a line, and the seconds of a step of its run. Raises
    ConfigError."""
    report = read_doctor_report(machine)
    found: dict[str, float] = {}
    if (line := report.line) is not None:
        found |= {"up": line.up_bits_s / MEGA, "down": line.down_bits_s / MEGA}
    if (run := report.run) is not None and run.samples_s is not None:
        found["compute"] = run.samples_full / run.samples_s
    if not found:
        raise ConfigError(f"{machine}: measured no run and no line; give the doctor an invite of one")
    return found


class PlanOptions(Options):
    file: Path | None = option(
        "a TOML file with the setting (docs/planner.md); options override it", None, metavar="FILE", positional=True
    )
    preset: str | None = option("the model, by the name of a built-in size", None, metavar="NAME")
    parameters: int | None = option(
        "the model, by its number of parameters", None, metavar="N", ge=1, le=PARAMETERS_MAX
    )
    nodes: int | None = option(f"how many nodes, at most {NODES_MAX:,}", None, metavar="N", ge=1, le=NODES_MAX)
    per_host: int | None = option("nodes that share a host and its line", None, metavar="N", ge=1, le=NODES_MAX)
    compute: float | None = option("mean seconds of a step of one node", None, metavar="SECONDS", gt=0, le=POSITIVE_MAX)
    variation: float | None = option(
        "their standard deviation over their mean", None, metavar="PART", ge=0, le=VARIATION_MAX
    )
    up: float | None = option("rate up of a host's line", None, metavar="MBIT", gt=0, le=POSITIVE_MAX)
    down: float | None = option(
        "rate down of a host's line", None, metavar="MBIT", gt=0, le=POSITIVE_MAX, shown="that of --up"
    )
    rtt: float | None = option("round trip between hosts", None, metavar="MS", ge=0, le=RTT_MS_MAX)
    lost: float | None = option("packets lost between hosts", None, metavar="PERCENT", ge=0, lt=100)
    machine: Path | None = option(
        "what `thinwire-node doctor --json` printed: its line, and with an invite of a run its step",
        None,
        metavar="FILE",
        has_variable=False,
    )
