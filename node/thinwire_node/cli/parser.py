"""The command line of `thinwire-node`. Each command imports its modules when it runs, because torch takes seconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thinwire_common.options import add_options, add_program_options, read_options, variable
from thinwire_node.cli.options import (
    CertificateOptions,
    DoctorOptions,
    LimitsOptions,
    NodeStateOptions,
    PageOptions,
    SampleOptions,
    StartOptions,
    StatusOptions,
    home_problem,
)
from thinwire_node.limits.limits import Limits
from thinwire_proto.errors import UsageError


def parser() -> argparse.ArgumentParser:
    """Build the parser. The parsed arguments have a `command`: a function that takes them."""
    parser = argparse.ArgumentParser("thinwire-node", description="The command `thinwire-node`.")
    add_program_options(parser)
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
    _add_owners_commands(commands)
    text = "run a node as a service that starts when you log in; takes the options of start too"
    install = commands.add_parser("install-service", help=text)
    install.add_argument(
        "--print", action="store_true", dest="only_print", help="show the service, and install nothing"
    )
    add_options(install, StartOptions, *(name for name in StartOptions.model_fields if name != "state_slots"))
    install.set_defaults(command=_install_service)
    uninstall = commands.add_parser("uninstall-service", help="stop the service and remove it; the state stays")
    uninstall.set_defaults(command=_uninstall_service)
    doctor = commands.add_parser("doctor", help="examine this machine, and the way to a coordinator; joins nothing")
    doctor.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_options(doctor, DoctorOptions, *DoctorOptions.model_fields)
    doctor.set_defaults(command=_doctor)
    certificate = commands.add_parser("certificate", help="ask the coordinator to certify what it has counted")
    add_options(certificate, CertificateOptions, *CertificateOptions.model_fields)
    certificate.set_defaults(command=_certificate)
    page = commands.add_parser("page", help="serve a page on this machine that shows the node, pauses and stops it")
    add_options(page, PageOptions, *PageOptions.model_fields)
    page.set_defaults(command=_page)
    sample = commands.add_parser("sample", help="let the model of this node write, as it is now")
    add_options(sample, SampleOptions, *SampleOptions.model_fields)
    sample.set_defaults(command=_sample)
    return parser


def _add_owners_commands(commands: Any) -> None:
    """The commands with which an owner limits a node, also while it runs."""
    change = commands.add_parser("set", help="change limits, such as max-upload=500kB/s; none takes one away")
    change.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="without any: show the limits")
    pause = commands.add_parser("pause", help="let the node rest, for 1h, until 22:00, or until `resume`")
    pause.add_argument("until", nargs="*", metavar="1h | until 22:00", help="without: until `resume`")
    resume = commands.add_parser("resume", help="end a pause")
    stop = commands.add_parser("stop", help="stop the node that runs")
    stop.add_argument("--after-round", action="store_true", help="once its contribution at hand is counted")
    for order, one in (("set", change), ("pause", pause), ("resume", resume), ("stop", stop)):
        add_options(one, LimitsOptions, *(LimitsOptions.model_fields if one is change else ("state_dir",)))
        one.set_defaults(command=_order, order=order)


def _order(arguments: argparse.Namespace) -> None:
    options = read_options(LimitsOptions, arguments)
    _check_home(options, None)

    from thinwire_node.cli import owner  # noqa: PLC0415

    folder = options.state_dir
    orders: dict[str, Callable[[], str]] = {
        "set": lambda: owner.set_limits(folder, options.limits, arguments.changes),
        "pause": lambda: owner.pause(folder, arguments.until),
        "resume": lambda: owner.resume(folder),
        "stop": lambda: owner.stop(folder, after_round=arguments.after_round),
    }
    print(orders[arguments.order]())


def _start(arguments: argparse.Namespace) -> None:
    options = start_options(arguments)
    outside = {name: os.environ.get(variable(StartOptions, name), "") for name in Limits.model_fields}
    given = {name: text for name, text in (outside | vars(arguments)).items() if name in outside and text}

    from thinwire_node.cli.start import start  # noqa: PLC0415

    start(options, given)


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


def _check_home(options: NodeStateOptions, slots: Path | None) -> None:
    """Raise UsageError if the state directory is in a home folder that does not exist."""
    if slots is None and (problem := home_problem(options.state_dir)):
        raise UsageError(problem)


def _install_service(arguments: argparse.Namespace) -> None:
    options = start_options(arguments)
    if options.state_slots is not None:
        raise UsageError("a service has one state directory; unset THINWIRE_NODE_STATE_SLOTS")

    from thinwire_node.cli.service import install  # noqa: PLC0415

    print(install(options, arguments, only_print=arguments.only_print))


def _uninstall_service(arguments: argparse.Namespace) -> None:
    from thinwire_node.cli.service import uninstall  # noqa: PLC0415

    print(uninstall())


def _doctor(arguments: argparse.Namespace) -> None:
    options = read_options(DoctorOptions, arguments)

    from thinwire_node.cli.doctor import examined  # noqa: PLC0415

    examined(options, as_json=arguments.json)


def _status(arguments: argparse.Namespace) -> None:
    options = read_options(StatusOptions, arguments)
    slots = _state_slots(options, arguments)
    _check_home(options, slots)

    from thinwire_node.cli.status import print_slots, print_status  # noqa: PLC0415

    if slots is None:
        print_status(options.state_dir, as_json=arguments.json)
    else:
        print_slots(slots, as_json=arguments.json)


def _certificate(arguments: argparse.Namespace) -> None:
    options = read_options(CertificateOptions, arguments)

    from thinwire_node.cli.certificate import check, fetch  # noqa: PLC0415

    if options.check is not None:
        print(check(options.check, options.invite))
        return
    if options.invite is not None:
        raise UsageError("an invite is compared with a certificate: give --check FILE too")
    print(fetch(options.state_dir, options.out, options.badge))
    print(f"written to {options.out}; to check it: thinwire-node certificate --check {options.out}")


def _page(arguments: argparse.Namespace) -> None:
    options = read_options(PageOptions, arguments)

    from thinwire_node.cli.page import serve  # noqa: PLC0415

    serve(options.state_dir, options.limits, options.port)


def _sample(arguments: argparse.Namespace) -> None:
    options = read_options(SampleOptions, arguments)

    from thinwire_common.program import print_pieces  # noqa: PLC0415
    from thinwire_node.cli.sample import sample  # noqa: PLC0415
    from thinwire_proto.generation import Sampling  # noqa: PLC0415

    sampling = Sampling(options.length, options.temperature, seed=options.seed)
    print_pieces(sample(options.state_dir, options.prompt, sampling))
