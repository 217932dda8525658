"""The command `thinwire-coordinator`.

Only commands that work on a run load torch, which takes seconds: they import what they need themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from thinwire_common.logs import FORMATS, formatter, tell
from thinwire_coordinator.cli.address import check_address
from thinwire_coordinator.cli.status_client import ask_status
from thinwire_coordinator.cli.status_table import table
from thinwire_proto.errors import MEND_DISK, ConfigError, ThinwireError

if TYPE_CHECKING:
    from thinwire_proto.exact.replica import Replica

log = logging.getLogger("thinwire.coordinator")

DEFAULT_LISTEN = "127.0.0.1:7700"
DEFAULT_HTTP = "127.0.0.1:7701"


def main() -> None:
    arguments = _parser().parse_args()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(getattr(arguments, "log_format", "text")))
    logging.basicConfig(level=arguments.log_level.upper(), handlers=[handler])
    try:
        arguments.command(arguments)
    except ThinwireError as error:
        _fail(arguments, str(error))
    except OSError as error:
        _fail(arguments, f"the disk fails: {error}; {MEND_DISK}")


def _fail(arguments: argparse.Namespace, text: str) -> NoReturn:
    if getattr(arguments, "log_format", "text") == "json":
        tell(log, logging.ERROR, "coordinator.failed", text)
    else:
        print(f"thinwire-coordinator: {text}", file=sys.stderr)
    sys.exit(1)


def _serve(arguments: argparse.Namespace) -> None:
    import uvloop  # noqa: PLC0415 - not there on Windows, where the other commands work

    from thinwire_coordinator.cli.run_file import read_run  # noqa: PLC0415
    from thinwire_coordinator.coordinator import Coordinator, Settings  # noqa: PLC0415

    settings = Settings(
        state_dir=arguments.state_dir,
        listen=check_address(arguments.listen),
        run=read_run(arguments.run) if arguments.run else None,
        wait_for=arguments.wait_for,
        evaluate_every=arguments.evaluate_every,
        bodies=arguments.bodies,
        keep=arguments.keep,
        http=None if arguments.http == "off" else check_address(arguments.http or DEFAULT_HTTP),
        http_may_move=arguments.http is None,
        ready_file=arguments.ready_file,
    )

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await Coordinator(settings).run(stop)

    uvloop.run(serve())


def _status(arguments: argparse.Namespace) -> None:
    Console().print(table(ask_status(check_address(arguments.address))))


def _verify(arguments: argparse.Namespace) -> None:
    from thinwire_coordinator.ledger.verify import verify  # noqa: PLC0415

    verify(arguments.state_dir, print)


def _export(arguments: argparse.Namespace) -> None:
    replica = _replica(arguments.state_dir, arguments.step)
    try:
        replica.save(arguments.out)
    except OSError as error:
        raise ConfigError(str(error)) from None
    print(f"step {replica.step}: {replica.layout.parameters:,} parameters written to {arguments.out}")


def _sample(arguments: argparse.Namespace) -> None:
    from thinwire_coordinator.evaluation import sample  # noqa: PLC0415

    replica = _replica(arguments.state_dir, None)
    text = sample(replica, arguments.prompt, arguments.length, arguments.temperature, arguments.seed)
    print(arguments.prompt + text)


def _replica(folder: Path, step: int | None) -> Replica:
    """The replica of a step (the head, if None), replayed from the newest snapshot before it."""
    from thinwire_coordinator.ledger.state_directory import open_state, replay, replica_at_head  # noqa: PLC0415

    state = open_state(folder)
    if step is None:
        return replica_at_head(state)
    if not 0 <= step <= state.ledger.step:
        raise ConfigError(f"there is no step {step}: the ledger holds steps 0 to {state.ledger.step}")
    snapshots = state.snapshot_steps()
    if step < snapshots[0]:
        raise ConfigError(f"step {step} is not kept any more: the oldest snapshot is that of step {snapshots[0]}")
    replica = state.load_snapshot(max(snapshot for snapshot in snapshots if snapshot <= step))
    for _ in replay(state, replica, step):
        pass
    return replica


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("thinwire-coordinator", description=__doc__)
    parser.add_argument("--log-level", choices=("debug", "info", "warning"), default="info")
    parser.add_argument("--version", action="version", version=f"thinwire {version('thinwire')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the swarm")
    serve.add_argument("--run", type=Path, metavar="RUN.toml", help="the run; without it, the byte model")
    serve.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    serve.add_argument("--wait-for", type=_positive, default=1, metavar="N", help="nodes before the first round")
    serve.add_argument(
        "--evaluate-every", type=_positive, default=20, metavar="STEPS", help="held-out loss; default 20"
    )
    serve.add_argument(
        "--keep",
        type=_kept,
        metavar="N",
        help="keep the newest N snapshots (2 or more) and every update since the oldest of them; without it, "
        "everything from the first state on",
    )
    serve.add_argument(
        "--bodies",
        metavar="URL",
        help="where a new run's updates are kept: a folder, s3://BUCKET/PREFIX, …; default: in the state directory",
    )
    serve.add_argument(
        "--http",
        metavar="HOST:PORT",
        help=f"the page, and the metrics; 'off' for none; default {DEFAULT_HTTP}, or a free port",
    )
    serve.add_argument(
        "--log-format", choices=FORMATS, default="text", help="text, or one JSON object a line; default text"
    )
    serve.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="written when nodes can join; default in the state directory"
    )
    serve.set_defaults(command=_serve)

    ask = commands.add_parser("status", help="how a running swarm is doing")
    ask.add_argument(
        "address", nargs="?", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}"
    )
    ask.set_defaults(command=_status)

    check = commands.add_parser("verify", help="replay the ledger and check every hash and fingerprint")
    check.set_defaults(command=_verify)

    export = commands.add_parser("export", help="write the parameters of a step as safetensors")
    export.add_argument("--step", type=int, metavar="S", help="default: the newest")
    export.add_argument("--out", type=Path, required=True, metavar="FILE.safetensors")
    export.set_defaults(command=_export)

    write = commands.add_parser("sample", help="what the model writes by now")
    write.add_argument("--prompt", default="def ", metavar="TEXT")
    write.add_argument("--length", type=_positive, default=300, metavar="BYTES")
    write.add_argument("--temperature", type=float, default=0.8)
    write.add_argument("--seed", type=int, default=1)
    write.set_defaults(command=_sample)

    for command in (serve, check, export, write):
        command.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def _kept(text: str) -> int:
    from thinwire_coordinator.ledger.retention import KEEP_MIN  # noqa: PLC0415

    number = int(text)
    if number < KEEP_MIN:
        raise argparse.ArgumentTypeError(f"must be {KEEP_MIN} or more, one of them to fall back on, not {number}")
    return number


if __name__ == "__main__":
    main()
