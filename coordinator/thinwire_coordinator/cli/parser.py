"""The command line of `thinwire-coordinator`. Each command imports its modules when it runs, because torch takes
seconds to import."""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from thinwire_common.number_arguments import count, number, whole, within
from thinwire_common.options import add_options, add_program_options, read_options
from thinwire_common.text_argument import Text
from thinwire_coordinator.cli.access_options import add_access_commands
from thinwire_coordinator.cli.options import CommonOptions, ReplayOptions, RunStateOptions, ServeOptions, StatusOptions
from thinwire_coordinator.cli.planning_options import add_planning_commands
from thinwire_coordinator.cli.prepare import add_prepare
from thinwire_proto.errors import ContractError, UsageError

SEED_MIN, SEED_MAX = -(1 << 63), (1 << 64) - 1
"""Seeds that torch takes."""


def parser() -> argparse.ArgumentParser:
    """The argument parser. Parsed arguments hold `command`, a function that takes these arguments."""
    parser = argparse.ArgumentParser("thinwire-coordinator", description="The command `thinwire-coordinator`.")
    add_program_options(parser)
    add_options(parser, CommonOptions)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_planning_commands(commands)

    serve = commands.add_parser("serve", help="run the swarm")
    add_options(serve, ServeOptions, *(name for name in ServeOptions.model_fields if name != "log_level"))
    serve.set_defaults(command=_serve)

    add_access_commands(commands)

    ask = commands.add_parser("status", help="show the status of a running swarm")
    add_options(ask, StatusOptions, "coordinator", "state_dir")
    ask.add_argument("--json", action="store_true", help="print JSON, with the names of StatusReply in service.proto")
    ask.set_defaults(command=_status)

    check = _add_verify(commands)

    export = commands.add_parser("export", help="write the model of a step, for transformers or as one file")
    export.add_argument("--step", type=whole, metavar="S", help="default: the newest")
    export.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER|FILE.safetensors",
        help="a folder that transformers opens, or one file with the parameters under thinwire's names",
    )
    export.add_argument("--merge", action="store_true", help="write an adapter together with its base, as one model")
    export.add_argument(
        "--push", metavar="OWNER/NAME", help="upload the folder to the Hugging Face Hub, with the token in HF_TOKEN"
    )
    export.set_defaults(command=_export)

    begin = commands.add_parser("import", help="create a run that begins from the weights in a folder")
    begin.add_argument(
        "weights", type=Path, metavar="FOLDER", help="config.json and safetensors files, as transformers writes them"
    )
    add_options(begin, ServeOptions, "state_dir", "run", "bodies")
    begin.set_defaults(command=_import)

    write = commands.add_parser("sample", help="generate text with the model of a step")
    write.add_argument("--step", type=whole, metavar="S", help="default: the newest")
    asked = write.add_mutually_exclusive_group()
    asked.add_argument(
        "--prompt", type=Text(), metavar="TEXT", help="the text to continue; default: the start of a document"
    )
    asked.add_argument(
        "--chat", type=Text(), metavar="TEXT", help="a message to answer, by the chat template of the tokenizer"
    )
    write.add_argument(
        "--length", type=count, default=300, metavar="TOKENS", help="the most tokens to generate; default 300"
    )
    write.add_argument(
        "--temperature", type=_temperature, default=0.8, help="0 always picks the most likely token; default 0.8"
    )
    write.add_argument(
        "--top-p", type=_share, default=1.0, metavar="P", help="draw only from the likeliest tokens that add up to P"
    )
    write.add_argument("--seed", type=within(SEED_MIN, SEED_MAX), default=1)
    write.set_defaults(command=_sample)

    measure = _add_evaluate(commands)
    _add_backup(commands)

    make = commands.add_parser("prepare", help="turn text into token shards for a run")
    add_prepare(make)

    for command in (check, export, write, measure):
        add_options(command, ReplayOptions, "state_dir", "threads")
    return parser


def _add_evaluate(commands: Any) -> argparse.ArgumentParser:
    measure: argparse.ArgumentParser = commands.add_parser(
        "evaluate", help="a step's model on held-out sets, on other text, or on tasks of lm-eval"
    )
    measure.add_argument("--step", type=whole, metavar="S", help="default: the newest")
    measure.add_argument("--set", action="append", default=[], metavar="NAME", help="default: all held-out sets")
    measure.add_argument("--text", action="append", default=[], type=Path, metavar="FILE", help="a text in UTF-8")
    measure.add_argument(
        "--tasks", type=_names, metavar="NAME[,NAME …]", help="tasks of lm-eval; needs 'thinwire[tasks]'"
    )
    measure.add_argument("--tasks-from", type=Path, metavar="FOLDER", help="more tasks; their files may run code")
    measure.add_argument("--limit", type=count, metavar="N", help="samples of each task; default: all")
    measure.add_argument("--samples", type=count, metavar="N", help="of each set; default: as many as in the run")
    measure.add_argument("--json", action="store_true", help="print JSON")
    measure.set_defaults(command=_evaluate)
    return measure


def _add_backup(commands: Any) -> None:
    copy = commands.add_parser("backup", help="copy the run elsewhere while it goes on; again: what is new")
    copy.add_argument("--to", required=True, metavar="FOLDER|URL", help="a folder, s3://BUCKET/PREFIX, …")
    add_options(copy, RunStateOptions, "state_dir")
    copy.set_defaults(command=_back_up)

    takeover = commands.add_parser("promote", help="make a standby the coordinator of its run")
    add_options(takeover, RunStateOptions, "state_dir")
    takeover.set_defaults(command=_promote)

    aside = commands.add_parser("branch", help="create a run that begins with the model of a step of this one")
    aside.add_argument("--from", dest="step", type=whole, metavar="STEP", help="default: the newest")
    aside.add_argument("--to", type=Path, required=True, metavar="DIR", help="the state directory of the new run")
    aside.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="as for amend; any key")
    aside.add_argument(
        "--apart", action="store_true", help="with a key and invites of its own, so that this run may go on"
    )
    add_options(aside, RunStateOptions, "state_dir")
    aside.set_defaults(command=_branch)

    back = commands.add_parser("restore", help="bring a run back from a backup")
    back.add_argument("backup", metavar="FOLDER|URL")
    add_options(back, RunStateOptions, "state_dir")
    back.set_defaults(command=_restore)


def _add_verify(commands: Any) -> argparse.ArgumentParser:
    check: argparse.ArgumentParser = commands.add_parser(
        "verify", help="replay the ledger and check every hash, fingerprint and signature"
    )
    check.add_argument(
        "--invite",
        metavar="INVITE",
        help="an invite to the run, used or not, or @FILE with one: the coordinator that it names must have signed",
    )
    check.set_defaults(command=_verify)
    return check


def _serve(arguments: argparse.Namespace) -> None:
    options = read_options(ServeOptions, arguments)

    from thinwire_coordinator.cli.serve import serve  # noqa: PLC0415

    serve(options)


def _status(arguments: argparse.Namespace) -> None:
    options = read_options(StatusOptions, arguments)

    from thinwire_coordinator.cli.status import print_status  # noqa: PLC0415

    print_status(options.coordinator, options.state_dir, as_json=arguments.json)


def _verify(arguments: argparse.Namespace) -> None:
    options = read_options(ReplayOptions, arguments)

    from thinwire_coordinator.verify import verify  # noqa: PLC0415
    from thinwire_proto.identity.invite import parse_given_invite  # noqa: PLC0415

    invite = parse_given_invite(arguments.invite) if arguments.invite else None
    _set_threads(options)
    verify(options.state_dir, print, invite.fingerprint if invite else None)


def _export(arguments: argparse.Namespace) -> None:
    options = read_options(ReplayOptions, arguments)

    from thinwire_coordinator.export.export import export  # noqa: PLC0415

    _set_threads(options)
    export(options.state_dir, arguments.step, arguments.out, arguments.merge, arguments.push)


def _import(arguments: argparse.Namespace) -> None:
    options = read_options(ServeOptions, arguments)

    from thinwire_coordinator.cli.import_run import import_run  # noqa: PLC0415

    import_run(arguments.weights, options.run, options.state_dir, options.bodies)


def _sample(arguments: argparse.Namespace) -> None:
    options, given = read_options(ReplayOptions, arguments), arguments

    from thinwire_coordinator.cli.sample import sample  # noqa: PLC0415
    from thinwire_proto.generation import Sampling  # noqa: PLC0415

    _set_threads(options)
    sampling = Sampling(given.length, given.temperature, given.top_p, given.seed)
    sample(options.state_dir, given.step, given.prompt, given.chat, sampling)


def _back_up(arguments: argparse.Namespace) -> None:
    options = read_options(RunStateOptions, arguments)

    from thinwire_coordinator.cli.backup import back_up  # noqa: PLC0415

    back_up(options.state_dir, arguments.to)


def _branch(arguments: argparse.Namespace) -> None:
    options = read_options(RunStateOptions, arguments)

    from thinwire_coordinator.cli.amend import change_of  # noqa: PLC0415
    from thinwire_coordinator.cli.branch import branch  # noqa: PLC0415

    changes = dict(map(change_of, arguments.set))
    branch(options.state_dir, arguments.step, arguments.to, changes, apart=arguments.apart)


def _restore(arguments: argparse.Namespace) -> None:
    options = read_options(RunStateOptions, arguments)

    from thinwire_coordinator.cli.backup import restore  # noqa: PLC0415

    restore(arguments.backup, options.state_dir)


def _promote(arguments: argparse.Namespace) -> None:
    options = read_options(RunStateOptions, arguments)

    from thinwire_coordinator.cli.backup import promote  # noqa: PLC0415

    promote(options.state_dir)


def _evaluate(arguments: argparse.Namespace) -> None:
    options = read_options(ReplayOptions, arguments)

    from thinwire_coordinator.cli.evaluate import AskedTasks, evaluate  # noqa: PLC0415
    from thinwire_coordinator.hall.measurement import SAMPLES  # noqa: PLC0415

    _set_threads(options)
    folder, given = options.state_dir, arguments
    if given.tasks is None and (given.tasks_from is not None or given.limit is not None):
        raise UsageError("--tasks-from and --limit need --tasks")
    tasks = AskedTasks(given.tasks, given.tasks_from, given.limit) if given.tasks is not None else None
    samples = given.samples or SAMPLES
    evaluate(folder, given.step, given.set, given.text, samples, as_json=given.json, tasks=tasks)


def _set_threads(options: ReplayOptions) -> None:
    """Set the number of torch threads as the options say, or to the default for the run."""
    import torch  # noqa: PLC0415

    from thinwire_coordinator.hall.workers import default_threads  # noqa: PLC0415
    from thinwire_proto.contract import parse_contract  # noqa: PLC0415
    from thinwire_proto.exact.tiles import layout_of  # noqa: PLC0415

    parameters = 0
    with suppress(OSError, ContractError):  # opening the state directory reports the error
        contract = parse_contract((options.state_dir / "contract.json").read_bytes())
        parameters = layout_of(contract.parameters).parameters
    torch.set_num_threads(options.threads or default_threads(parameters, torch.get_num_threads()))


def _names(text: str) -> list[str]:
    """Names with commas between them."""
    found = [name for part in text.split(",") if (name := part.strip())]
    if not found:
        raise argparse.ArgumentTypeError("names no task")
    return found


def _temperature(text: str) -> float:
    return number(text, "a number of 0 or more", lambda found: 0 <= found < math.inf)


def _share(text: str) -> float:
    return number(text, "above 0 and at most 1", lambda found: 0 < found <= 1)
