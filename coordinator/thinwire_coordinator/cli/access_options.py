"""The command lines of `thinwire-coordinator invite`, `invites`, `revoke`, `nodes`, `ban` and `unban`."""

from __future__ import annotations

import argparse

from thinwire_common.number_arguments import within
from thinwire_common.options import add_options, read_options
from thinwire_common.units import parse_seconds
from thinwire_coordinator.cli.options import RunStateOptions
from thinwire_coordinator.hall.access.addresses import checked_address
from thinwire_coordinator.hall.access.invites import EXPIRES, OPEN_PER_ADDRESS

NEVER = "never"
COUNT_MAX = (1 << 31) - 1


def add_access_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that say who may join."""
    invite = commands.add_parser("invite", help="make an invite; its text is alone on the last line")
    invite.add_argument(
        "--uses", type=within(1, COUNT_MAX), metavar="N", help="nodes that may enrol with it; default 1"
    )
    invite.add_argument(
        "--expires",
        type=_expiry,
        default=argparse.SUPPRESS,
        metavar="24h",
        help=f"it admits no new node after this long, or 'never'; default {EXPIRES}, or never with --open",
    )
    invite.add_argument("--name", default="", metavar="NAME", help="whom it is for, shown to you alone")
    invite.add_argument(
        "--address", type=_address, metavar="HOST:PORT", help="where nodes find the coordinator; default: see serve"
    )
    invite.add_argument(
        "--open",
        action="store_true",
        help="an invite to publish: any number of nodes, no end, but a few a day from one address",
    )
    invite.add_argument(
        "--per-address",
        type=within(1, COUNT_MAX),
        metavar="N",
        help=f"nodes that one address may enrol in a day; default: any number, or {OPEN_PER_ADDRESS} with --open",
    )
    invites = commands.add_parser("invites", help="list the invites")
    revoke = commands.add_parser("revoke", help="end an invite; nodes that enrolled with it stay")
    revoke.add_argument("number", type=within(1, COUNT_MAX), metavar="ID", help="its number in the list of invites")
    revoke.add_argument("--nodes", action="store_true", help="also ban the nodes that enrolled with it")
    nodes = commands.add_parser("nodes", help="list the nodes that have enrolled, with their addresses")
    ban = commands.add_parser("ban", help="end a node's session, and refuse the node")
    ban.add_argument("--for", dest="length_s", type=_duration, metavar="24h", help="default: until you unban it")
    unban = commands.add_parser("unban", help="admit a banned node again")
    for command in (ban, unban):
        command.add_argument("node", metavar="NODE", help="its id, or the first digits of it")
        command.add_argument("--reason", default="", metavar="TEXT", help="kept, and told to a banned node")
    named = {"invite": invite, "invites": invites, "revoke": revoke, "nodes": nodes, "ban": ban, "unban": unban}
    for name, command in named.items():
        add_options(command, RunStateOptions, "state_dir")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(command=_run, access=name)


def _run(arguments: argparse.Namespace) -> None:
    options = read_options(RunStateOptions, arguments)

    from thinwire_coordinator.cli.access import run  # noqa: PLC0415

    run(arguments.access, options.state_dir, arguments)


def _duration(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _expiry(text: str) -> float | None:
    return None if text == NEVER else _duration(text)


def _address(text: str) -> str:
    try:
        return checked_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
