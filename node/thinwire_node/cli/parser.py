"""The command line of `thinwire-node`. A command loads what it needs when it runs: torch takes seconds."""

from __future__ import annotations

import argparse

from thinwire_common.options import add_option, add_options, add_version, read_options
from thinwire_node.cli.options import StartOptions, StateOptions
from thinwire_proto.errors import ConfigError


def parser() -> argparse.ArgumentParser:
    """Its arguments have a `command`, to be called with them."""
    parser = argparse.ArgumentParser("thinwire-node", description="The command `thinwire-node`.")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="take part in a swarm")
    homes = ("state_dir", "state_slots")
    add_options(start, StartOptions, *(name for name in StartOptions.model_fields if name not in homes))
    home = start.add_mutually_exclusive_group()
    add_options(home, StartOptions, "state_dir")
    add_option(home, StartOptions, "state_slots", "--places")
    start.set_defaults(command=_start)
    ask = commands.add_parser("status", help="how a node on this machine is")
    ask.add_argument("--json", action="store_true", help="all that is known, as JSON")
    add_options(ask, StateOptions)
    ask.set_defaults(command=_status)
    return parser


def _start(arguments: argparse.Namespace) -> None:
    options = start_options(arguments)

    from thinwire_node.cli.start import start  # noqa: PLC0415

    start(options)


def start_options(arguments: argparse.Namespace) -> StartOptions:
    """Raises ConfigError."""
    options = read_options(StartOptions, arguments)
    return options.model_copy(update={"state_slots": _state_slots(options, arguments)})


def _state_slots(options: StartOptions, arguments: argparse.Namespace) -> object:
    """None if the state directory is to be used: what is on the command line wins. Raises ConfigError."""
    if "state_slots" in arguments or options.state_slots is None or "state_dir" not in options.model_fields_set:
        return options.state_slots
    if "state_dir" in arguments:
        return None
    raise ConfigError("THINWIRE_STATE_DIR and THINWIRE_STATE_SLOTS are both set; unset one of them")


def _status(arguments: argparse.Namespace) -> None:
    options = read_options(StateOptions, arguments)

    from thinwire_node.cli.status import print_status  # noqa: PLC0415

    print_status(options.state_dir, as_json=arguments.json)
