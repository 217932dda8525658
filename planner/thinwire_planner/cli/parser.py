"""The command line of `thinwire`. Each command imports its modules when it runs, because torch takes seconds."""

from __future__ import annotations

import argparse

from thinwire_common.options import add_options, add_version, read_options
from thinwire_planner.cli.options import PlanOptions


def parser() -> argparse.ArgumentParser:
    """Build the parser. The parsed arguments have a `command`: a function that takes them."""
    parser = argparse.ArgumentParser("thinwire", description="The command `thinwire`.")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="predict the time of a step of every exchange, and say which to take")
    add_options(plan, PlanOptions)
    plan.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    plan.add_argument("--all", action="store_true", help="list all variants, and not only the best of each kind")
    plan.set_defaults(command=_plan)
    return parser


def _plan(arguments: argparse.Namespace) -> None:
    options = read_options(PlanOptions, arguments)

    from thinwire_planner.cli.run import run  # noqa: PLC0415

    run(options, as_json=arguments.json, lists_all=arguments.all)
