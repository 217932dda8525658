"""The command lines of `thinwire-coordinator init`, `check` and `amend`."""

from __future__ import annotations

import argparse
from pathlib import Path

from thinwire_common.number_arguments import above_zero, count, within
from thinwire_common.options import add_options, read_options
from thinwire_coordinator.cli.options import RunStateOptions
from thinwire_coordinator.planning.facts import DEFAULT_MACHINE, MACHINES, RTT_SECONDS
from thinwire_coordinator.planning.settings import STEPS_MAX
from thinwire_proto.contract import EXCHANGES

NODES, UP_MBIT, DOWN_MBIT = 4, 10.0, 50.0
"""An ordinary home link in many countries, and as many nodes as were measured most."""

LEAST, MOST = 1e-9, 1e12


def add_planning_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add these commands."""
    init = commands.add_parser("init", help="write a commented run file for a model, data and links")
    init.add_argument("--model", metavar="PRESET|FOLDER", help="default: the preset that suits the amount of data")
    init.add_argument(
        "--lora", action="store_true", help="train an adapter on the model in the folder, which is frozen"
    )
    init.add_argument("--data", type=Path, metavar="FOLDER", help="prepared data; default: the byte corpus")
    init.add_argument(
        "--exchange",
        choices=tuple(kind.name for kind in EXCHANGES),
        default="star",
        help="star (default): the coordinator merges votes; gossip: nodes that trust each other average with peers",
    )
    init.add_argument(
        "--rule",
        metavar="RULE",
        help="what nodes do with gradients: demo, local_muon or merged_muon; with gossip, adamw or muon; default: what "
        "suits them",
    )
    _add_swarm(init)
    long = init.add_mutually_exclusive_group()
    long.add_argument(
        "--tokens", type=count, metavar="N", help="tokens to train on; default: 20 a parameter, at most 4 passes"
    )
    long.add_argument(
        "--steps", type=within(1, STEPS_MAX), metavar="N", help="steps to train: rounds, or iterations of gossip"
    )
    init.add_argument("--out", type=Path, default=Path("run.toml"), metavar="RUN.toml", help="default: run.toml")
    init.add_argument("--force", action="store_true", help="write over a file that is there")
    init.set_defaults(command=_init)

    check = commands.add_parser("check", help="explain the errors of a run file, and warn of what will be slow")
    check.add_argument("run", type=Path, metavar="RUN.toml")
    _add_swarm(check)
    check.set_defaults(command=_check)

    amend = commands.add_parser("amend", help="change a run from its next round on, or list what was changed")
    amend.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a key and its new value, as in a run file; may be given several times; docs/run-file.md says which keys",
    )
    amend.add_argument("--because", default="", metavar="TEXT", help="why, for the ledger, the page and the model card")
    amend.add_argument("--at", type=count, metavar="STEP", help="the first step that it holds for; default: the next")
    amend.add_argument("--dry-run", action="store_true", help="show what would change, and order nothing")
    add_options(amend, RunStateOptions, "state_dir")
    _add_swarm(amend)
    amend.set_defaults(command=_amend)


def _add_swarm(command: argparse.ArgumentParser) -> None:
    command.add_argument("--nodes", type=count, default=NODES, metavar="N", help=f"expected nodes; default {NODES}")
    for name, default, what in (("--up", UP_MBIT, "upload"), ("--down", DOWN_MBIT, "download")):
        text = f"a node's {what} in Mbit/s; default {default:g}"
        command.add_argument(name, type=within_reason, default=default, metavar="MBIT", help=text)
    text = f"round trip between two nodes in ms, for gossip; default {1000 * RTT_SECONDS:g}"
    command.add_argument("--rtt", type=within_reason, default=1000 * RTT_SECONDS, metavar="MS", help=text)
    speed = command.add_mutually_exclusive_group()
    speed.add_argument(
        "--machine",
        choices=tuple(MACHINES),
        default=DEFAULT_MACHINE,
        help=f"what a node is, to estimate its speed to a factor of about three; default {DEFAULT_MACHINE}",
    )
    speed.add_argument("--tokens-per-second", type=within_reason, metavar="N", help="a node's measured speed")


def within_reason(text: str) -> float:
    """A rate or a time whose figures are finite."""
    found = above_zero(text)
    if not LEAST <= found <= MOST:
        raise argparse.ArgumentTypeError(f"must be from {LEAST:g} to {MOST:g}, not {text}")
    return found


def _init(arguments: argparse.Namespace) -> None:
    from thinwire_coordinator.cli.init import init  # noqa: PLC0415

    init(arguments)


def _amend(arguments: argparse.Namespace) -> None:
    options = read_options(RunStateOptions, arguments)

    from thinwire_coordinator.cli.amend import amend  # noqa: PLC0415

    amend(options.state_dir, arguments)


def _check(arguments: argparse.Namespace) -> None:
    from thinwire_coordinator.cli.check import check  # noqa: PLC0415

    check(arguments)
