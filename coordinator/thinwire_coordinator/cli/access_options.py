"""The command lines of the commands that work on access.sqlite: who may join, and whether the run is paused."""

from __future__ import annotations

import argparse
import re
from datetime import datetime

from thinwire_common.local_time import next_time
from thinwire_common.number_arguments import within
from thinwire_common.options import add_options, read_options
from thinwire_common.text_argument import Text
from thinwire_common.units import parse_seconds
from thinwire_coordinator.cli.options import RunStateOptions
from thinwire_coordinator.hall.access.addresses import checked_address
from thinwire_coordinator.hall.access.invites import EXPIRES, OPEN_PER_ADDRESS
from thinwire_proto.contract.amendment import REASON_LENGTH_MAX

NEVER = "never"
COUNT_MAX = (1 << 31) - 1
TEXT = Text(REASON_LENGTH_MAX)


def add_access_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that say who may join, and whether the run is paused."""
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
    invite.add_argument("--name", type=TEXT, default="", metavar="NAME", help="whom it is for, shown to you alone")
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
        command.add_argument("node", type=TEXT, metavar="NODE", help="its id, or the first digits of it")
        command.add_argument("--reason", type=TEXT, default="", metavar="TEXT", help="kept, and told to a banned node")
    pause = commands.add_parser("pause", help="begin no round until you resume the run, or a time has come")
    end = pause.add_mutually_exclusive_group()
    end.add_argument("--for", dest="length_s", type=_duration, metavar="9h", help="default: until you resume it")
    end.add_argument("--until", type=_time, metavar="08:00", help="here, within a day, or 2026-11-30T08:00")
    pause.add_argument(
        "--because", type=TEXT, default="", metavar="TEXT", help="told to the nodes and shown on the page"
    )
    resume = commands.add_parser("resume", help="let a paused run go on")
    named = {"invite": invite, "invites": invites, "revoke": revoke, "nodes": nodes, "ban": ban, "unban": unban}
    named |= {"pause": pause, "resume": resume}
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


def _time(text: str) -> float:
    """Unix time in seconds. Without a time zone, it is that of this machine."""
    now = datetime.now().astimezone()
    try:
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", text):
            hour, minute = map(int, text.split(":"))
            return next_time(hour, minute, now.timestamp())
        found = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a time such as 08:00 or 2026-11-30T08:00, not {text}") from None
    if found <= now:
        raise argparse.ArgumentTypeError(f"{text} is over")
    return found.timestamp()


def _expiry(text: str) -> float | None:
    return None if text == NEVER else _duration(text)


def _address(text: str) -> str:
    try:
        return checked_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
