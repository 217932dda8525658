"""The command lines of `thinwire-coordinator init`, `check`, `amend` and `rewind`."""

from __future__ import annotations

import argparse
from pathlib import Path

from thinwire_common.number_arguments import above_zero, count, whole, within
from thinwire_common.options import add_options, read_options
from thinwire_common.text_argument import Text
from thinwire_coordinator.cli.options import RunStateOptions
from thinwire_coordinator.planning.facts import (
    COORDINATOR_CORES,
    DEFAULT_MACHINE,
    DOWN_MBIT,
    MACHINES,
    RTT_SECONDS,
    UP_MBIT,
    site_of,
)
from thinwire_coordinator.planning.settings import STEPS_MAX
from thinwire_proto.contract import EXCHANGES
from thinwire_proto.contract.amendment import REASON_LENGTH_MAX

NODES = 4
"""The number that was measured most."""

LEAST, MOST = 1e-9, 1e12


def add_planning_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    init = commands.add_parser("init", help="write a commented run file for a model, data and links")
    init.add_argument(
        "--model",
        metavar="PRESET|FOLDER|NAME",
        help="NAME: of a model in the Hub's cache, such as Qwen/Qwen3-8B; default: the preset that suits the data",
    )
    init.add_argument(
        "--lora", action="store_true", help="train an adapter on the model in the folder, which is frozen"
    )
    init.add_argument("--data", type=Path, metavar="FOLDER", help="prepared data; default: the byte corpus")
    init.add_argument(
        "--exchange",
        choices=tuple(name for name, _ in EXCHANGES),
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
    init.add_argument(
        "--growth",
        type=int,
        choices=(1, 2, 4, 8, 16),
        help="rounds become so many times as large, with merged_muon; default: what suits the nodes; 1: none grows",
    )
    init.add_argument("--out", type=Path, default=Path("run.toml"), metavar="RUN.toml", help="default: run.toml")
    init.add_argument("--force", action="store_true", help="write over a file that is there")
    init.set_defaults(command=_init)

    check = commands.add_parser("check", help="explain the errors of a run file, and warn of what will be slow")
    check.add_argument("run", type=Path, metavar="RUN.toml")
    _add_swarm(check)
    check.set_defaults(command=_check)

    amend = commands.add_parser("amend", help="change a run from its next round on, or list what was changed")
    _add_amendment(amend)
    amend.add_argument("--at", type=count, metavar="STEP", help="the first step that it holds for; default: the next")
    text = "a text in UTF-8 that is measured from now on; with --set or alone"
    amend.add_argument("--held-out", action="append", default=[], metavar="NAME=FILE", help=text)
    amend.add_argument("--withdraw", action="store_true", help="withdraw all that wait")
    amend.set_defaults(rewind=None, samples_again=False)

    back = commands.add_parser("rewind", help="go on with the parameters of an earlier step of the run")
    back.add_argument("rewind", type=whole, metavar="STEP")
    text = "train on the samples of the steps that are given up again"
    back.add_argument("--samples-again", action="store_true", help=text)
    _add_amendment(back)
    back.set_defaults(at=None, held_out=[], withdraw=False)


def _add_amendment(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a key and its new value, as in a run file; may be given several times; docs/run-file.md says which keys",
    )
    text = "why, for the ledger, the page and the model card"
    command.add_argument("--because", type=Text(REASON_LENGTH_MAX), default="", metavar="TEXT", help=text)
    command.add_argument("--dry-run", action="store_true", help="show what would change, and order nothing")
    add_options(command, RunStateOptions, "state_dir")
    _add_swarm(command)
    command.set_defaults(command=_amend)


def _add_swarm(command: argparse.ArgumentParser) -> None:
    command.add_argument("--nodes", type=count, default=NODES, metavar="N", help=f"expected nodes; default {NODES}")
    for name, default, what in (("--up", UP_MBIT, "upload"), ("--down", DOWN_MBIT, "download")):
        text = f"a node's {what} in Mbit/s; default that of the file of --machine, or {default:g}"
        command.add_argument(name, type=within_reason, metavar="MBIT", help=text)
    text = f"round trip between two nodes in ms, for gossip; default {1000 * RTT_SECONDS:g}"
    command.add_argument("--rtt", type=within_reason, default=1000 * RTT_SECONDS, metavar="MS", help=text)
    speed = command.add_mutually_exclusive_group()
    speed.add_argument(
        "--machine",
        type=_machine,
        default=DEFAULT_MACHINE,
        metavar="NAME|FILE",
        help=f"what a node is: {', '.join(MACHINES)}, whose speeds are good to a factor of about three; several "
        "cards of one node, such as 8xh100-80G, where 80G is the memory of each; or a file that "
        f"`thinwire-node doctor --json` printed, which also gives --up and --down; default {DEFAULT_MACHINE}",
    )
    text = f"cores of the coordinator's machine, for the step of merged_muon; default {COORDINATOR_CORES}"
    command.add_argument("--coordinator-cores", type=count, default=COORDINATOR_CORES, metavar="N", help=text)
    speed.add_argument("--tokens-per-second", type=within_reason, metavar="N", help="a node's measured speed")


def _machine(text: str) -> str:
    if text in MACHINES or site_of(text) or Path(text).is_file():
        return text
    names = ", ".join(MACHINES)
    raise argparse.ArgumentTypeError(
        f"must be {names}, several cards such as 8xh100-80G, or a file of `thinwire-node doctor --json`, not {text!r}"
    )


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
