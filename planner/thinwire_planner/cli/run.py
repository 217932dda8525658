"""The command `thinwire plan`."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from thinwire_planner.choosing.plan import Goal, make_plan
from thinwire_planner.cli.curves import read_curves
from thinwire_planner.cli.document import document_of
from thinwire_planner.cli.options import PlanOptions
from thinwire_planner.cli.plan_file import PlanFile, parse, read_document, setting_of
from thinwire_planner.cli.plan_table import print_plan
from thinwire_planner.cli.plot import check_plot, draw

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
    "loss": "goal.loss",
    "tokens": "goal.tokens",
    "curves": "goal.curves",
}
"""The key of the file that each option sets."""
INSTEAD = {"preset": "parameters", "parameters": "preset"}
"""An option removes the file's key that says the same in another way."""


def run(options: PlanOptions, *, as_json: bool, lists_all: bool) -> None:
    """Make a plan and show it. Raises ThinwireError."""
    if options.plot is not None:
        check_plot(options.plot)  # planning takes long
    found, source = document(options), str(options.file or "the options")
    file = parse(found, source)
    setting = setting_of(file)
    plan = make_plan(setting, _goal(file, len(setting.speeds)))
    if options.plot is not None:
        draw(plan, options.plot)
    if as_json:
        print(json.dumps(document_of(plan), indent=1))
    else:
        print_plan(plan, Console(highlight=False, markup=False), lists_all=lists_all)


def document(options: PlanOptions) -> dict[str, Any]:
    """The file's document with the options in it. Raises ConfigError."""
    found: dict[str, Any] = read_document(options.file) if options.file is not None else {}
    given = {name: value for name in KEYS if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        section, _, key = KEYS[name].partition(".")
        inside = found.setdefault(section, {})
        if isinstance(inside, dict):
            if INSTEAD.get(name) not in given:
                inside.pop(INSTEAD.get(name), None)
            inside[key] = value
    return found


def _goal(file: PlanFile, nodes: int) -> Goal | None:
    if file.goal is None:
        return None
    return Goal(file.goal.loss, file.goal.tokens, read_curves(file.goal.curves, nodes))
