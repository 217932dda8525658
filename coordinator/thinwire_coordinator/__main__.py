"""Entry point of the command `thinwire-coordinator`."""

from __future__ import annotations

from thinwire_common.early_signals import obey_signals_early


def main() -> None:
    obey_signals_early()

    from thinwire_common.program import run_program  # noqa: PLC0415 - long enough for a Ctrl-C

    run_program("thinwire-coordinator", _run, _tell_failure)


def _run() -> None:
    from thinwire_common.logs import log_to_stderr  # noqa: PLC0415 - long enough for a Ctrl-C, as the next ones
    from thinwire_common.options import read_options  # noqa: PLC0415
    from thinwire_coordinator.cli.options import CommonOptions  # noqa: PLC0415
    from thinwire_coordinator.cli.parser import parser  # noqa: PLC0415

    arguments = parser().parse_args()
    log_to_stderr(read_options(CommonOptions, arguments).log_level)
    arguments.command(arguments)


def _tell_failure(text: str) -> None:
    import logging  # noqa: PLC0415

    from thinwire_common.logs import tell  # noqa: PLC0415

    tell(logging.getLogger("thinwire.coordinator"), logging.ERROR, "coordinator.failed", text)


if __name__ == "__main__":
    main()
