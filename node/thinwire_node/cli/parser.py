"""The command line of `thinwire-node`. Each command imports its modules when it runs, because torch takes seconds."""

from __future__ import annotations

import argparse
from pathlib import Path

from thinwire_common.options import add_options, add_version, read_options
from thinwire_node.cli.options import StartOptions, StatusOptions, home_problem
from thinwire_proto.errors import UsageError


def parser() -> argparse.ArgumentParser:
    """Build the parser. The parsed arguments have a `command`: a function that takes them."""
    parser = argparse.ArgumentParser("thinwire-node", description="The command `thinwire-node`.")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="take part in a swarm")
    homes = ("state_dir", "state_slots")
    add_options(start, StartOptions, *(name for name in StartOptions.model_fields if name not in homes))
    home = start.add_mutually_exclusive_group()
    add_options(home, StartOptions, *homes)
    start.set_defaults(command=_start)
    status = commands.add_parser("status", help="show the status of a node on this machine")
    status.add_argument("--json", action="store_true", help="print the whole report as JSON")
    asked = status.add_mutually_exclusive_group()
    add_options(asked, StatusOptions, "state_dir", "state_slots")
    status.set_defaults(command=_status)
    return parser


def _start(arguments: argparse.Namespace) -> None:
    options = start_options(arguments)

    from thinwire_node.cli.start import start  # noqa: PLC0415

    start(options)


def start_options(arguments: argparse.Namespace) -> StartOptions:
    """Read the options of `start`. Raises UsageError."""
    options = read_options(StartOptions, arguments)
    slots = _state_slots(options, arguments)
    _check_home(options, slots)
    return options.model_copy(update={"state_slots": slots})


def _state_slots(options: StartOptions | StatusOptions, arguments: argparse.Namespace) -> Path | None:
    """The folder with state slots, or None to use the state directory. The command line overrides the environment.
    Raises UsageError if the environment sets both."""
    if "state_slots" in arguments or options.state_slots is None or "state_dir" not in options.model_fields_set:
        return options.state_slots
    if "state_dir" in arguments:
        return None
    raise UsageError("THINWIRE_NODE_STATE_DIR and THINWIRE_NODE_STATE_SLOTS are both set; unset one of them")


def _check_home(options: StartOptions | StatusOptions, slots: Path | None) -> None:
    """Raise UsageError if the state directory is in a home folder that does not exist."""
    if slots is None and (problem := home_problem(options.state_dir)):
        raise UsageError(problem)


def _status(arguments: argparse.Namespace) -> None:
    options = read_options(StatusOptions, arguments)
    slots = _state_slots(options, arguments)
    _check_home(options, slots)

    from thinwire_node.cli.status import print_slots, print_status  # noqa: PLC0415

    if slots is None:
        print_status(options.state_dir, as_json=arguments.json)
    else:
        print_slots(slots, as_json=arguments.json)
