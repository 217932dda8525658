"""The command `thinwire-node`."""

from __future__ import annotations

import argparse
import logging
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from thinwire_common.logs import FORMATS, formatter, tell
from thinwire_node import runtime
from thinwire_node.observe import status
from thinwire_node.observe.terminal import Terminal, can_show
from thinwire_node.observe.view import byte_lines, lines
from thinwire_node.storage.state_slots import free_state_slot
from thinwire_proto.errors import ConfigError, ThinwireError

log = logging.getLogger("thinwire.node")

DEFAULT_STATE_DIR = Path.home() / ".thinwire" / "node"


def main() -> None:
    arguments = _parser().parse_args()
    try:
        arguments.command(arguments)
    except ThinwireError as error:
        if getattr(arguments, "log_format", "text") == "json":
            tell(log, logging.ERROR, "node.failed", str(error))
        else:
            print(f"thinwire-node: {error}", file=sys.stderr)
        sys.exit(1)


def _start(arguments: argparse.Namespace) -> None:
    import torch  # noqa: PLC0415 - takes seconds to load, which nobody wants to wait for who asks for the status

    from thinwire_node.daemon import Node, Settings  # noqa: PLC0415
    from thinwire_node.observe.monitor import Monitor  # noqa: PLC0415
    from thinwire_node.options import NodeOptions  # noqa: PLC0415

    _address(arguments.address)
    metrics = None if arguments.metrics is None else _address(arguments.metrics, host="127.0.0.1", port_min=0)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    with _home(arguments) as (state_dir, name), _logging(arguments) as terminal:
        settings = Settings(
            address=arguments.address,
            state_dir=state_dir,
            device=arguments.device,
            options=NodeOptions(arguments.name or name, arguments.micro_batch, arguments.rounds),
            give_up_after_s=arguments.give_up_after,
        )
        runtime.run(Monitor(Node(settings), terminal, metrics, arguments.ready_file).run)


@contextmanager
def _home(arguments: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """Where the node lives, and its name if it was given none."""
    if arguments.places is None:
        yield arguments.state_dir, platform.node() or "node"
        return
    with free_state_slot(arguments.places) as place:
        yield place.folder, f"node-{place.number}"


@contextmanager
def _logging(arguments: argparse.Namespace) -> Iterator[Terminal | None]:
    """Log lines go to stderr; if that is a terminal, above the live view, which is returned."""
    shown = arguments.log_format == "text" and can_show(sys.stderr)
    terminal = Terminal(sys.stderr) if shown else None
    handler = terminal or logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(arguments.log_format))
    logging.basicConfig(level=arguments.log_level.upper(), handlers=[handler])
    try:
        if terminal is not None:
            terminal.open()
        yield terminal
    finally:
        handler.close()


def _status(arguments: argparse.Namespace) -> None:
    folder, now_s = arguments.state_dir, time.time()
    report = status.read(folder)
    if arguments.json:
        print(status.REPORT.dump_json(report, indent=2).decode())
        return
    console = Console(highlight=False)
    for line in (*lines(status.since(report, now_s), console.width), *byte_lines(report)):
        console.print(line, no_wrap=True, overflow="ellipsis")
    print(status.condition(report, status.runs(folder), now_s))


def _address(text: str, host: str = "", port_min: int = 1) -> tuple[str, int]:
    """HOST:PORT, or PORT alone if there is a `host` for it."""
    found, colon, port = text.rpartition(":")
    found = found if colon else host
    if not (found and port.isdecimal() and port_min <= int(port) <= 65535):
        raise ConfigError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:7700")
    return found, int(port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("thinwire-node", description=__doc__)
    parser.add_argument("--version", action="version", version=f"thinwire {version('thinwire')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="take part in a swarm")
    start.add_argument("address", metavar="HOST:PORT", help="of the coordinator")
    start.add_argument("--device", default="auto", help="auto, cuda, mps or cpu; default auto")
    start.add_argument("--name", help="for people to read; default the machine's, or node-N in place N")
    start.add_argument("--rounds", type=_positive, metavar="N", help="leave after N counted contributions")
    start.add_argument("--micro-batch", type=_positive, default=8, metavar="SAMPLES", help="at a time; default 8")
    start.add_argument("--threads", type=_positive, metavar="N", help="CPU threads; default all cores")
    start.add_argument("--give-up-after", type=float, metavar="SECONDS", help="without a coordinator; default never")
    start.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve /metrics, /livez and /readyz there, on 127.0.0.1 unless a HOST is given; default not at all",
    )
    start.add_argument("--log-level", choices=("debug", "info", "warning"), default="info")
    start.add_argument(
        "--log-format", choices=FORMATS, default="text", help="text, or one JSON object a line; default text"
    )
    start.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="written when it has joined; default in the state directory"
    )
    start.set_defaults(command=_start)
    ask = commands.add_parser("status", help="how a node on this machine is")
    ask.add_argument("--json", action="store_true", help="all that is known, as JSON")
    ask.set_defaults(command=_status)
    home = start.add_mutually_exclusive_group()
    home.add_argument("--places", type=Path, metavar="DIR", help="for several nodes: a free folder DIR/0, DIR/1, …")
    for command in (home, ask):
        command.add_argument(
            "--state-dir", type=Path, default=DEFAULT_STATE_DIR, metavar="DIR", help=f"default {DEFAULT_STATE_DIR}"
        )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


if __name__ == "__main__":
    main()
