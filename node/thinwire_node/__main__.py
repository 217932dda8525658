"""The command `thinwire-node`."""

from __future__ import annotations

import argparse
import logging
import platform
import sys
from pathlib import Path

import torch

from thinwire_node import runtime
from thinwire_node.daemon import Node, Settings
from thinwire_node.session import Habits
from thinwire_proto.errors import ConfigError, ThinwireError

DEFAULT_STATE_DIR = Path.home() / ".thinwire" / "node"


def main() -> None:
    arguments = _parser().parse_args()
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=arguments.log_level.upper(), stream=sys.stderr
    )
    try:
        _start(arguments)
    except ThinwireError as error:
        print(f"thinwire-node: {error}", file=sys.stderr)
        sys.exit(1)


def _start(arguments: argparse.Namespace) -> None:
    host, colon, port = arguments.address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) <= 65535):
        raise ConfigError(f"{arguments.address!r} is not HOST:PORT, as in 127.0.0.1:7700")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    settings = Settings(
        address=arguments.address,
        state_dir=arguments.state_dir,
        device=arguments.device,
        habits=Habits(arguments.name, arguments.micro_batch, arguments.rounds),
        give_up_after_s=arguments.give_up_after,
    )
    runtime.run(Node(settings).run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("thinwire-node", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="take part in a swarm")
    start.add_argument("address", metavar="HOST:PORT", help="of the coordinator")
    start.add_argument(
        "--state-dir", type=Path, default=DEFAULT_STATE_DIR, metavar="DIR", help=f"default {DEFAULT_STATE_DIR}"
    )
    start.add_argument("--device", default="auto", help="auto, cuda, mps or cpu; default auto")
    start.add_argument("--name", default=platform.node() or "node", help="for people to read; default the machine's")
    start.add_argument("--rounds", type=_positive, metavar="N", help="leave after N counted contributions")
    start.add_argument("--micro-batch", type=_positive, default=8, metavar="SAMPLES", help="at a time; default 8")
    start.add_argument("--threads", type=_positive, metavar="N", help="CPU threads; default all cores")
    start.add_argument("--give-up-after", type=float, metavar="SECONDS", help="without a coordinator; default never")
    start.add_argument("--log-level", choices=("debug", "info", "warning"), default="info")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


if __name__ == "__main__":
    main()
