"""The command `thinwire`."""

from __future__ import annotations

from thinwire_common.early_signals import obey_signals_early


def main() -> None:
    obey_signals_early()

    from thinwire_common.program import run_program  # noqa: PLC0415 - long enough for a Ctrl-C

    run_program("thinwire", _run)


def _run() -> None:
    from thinwire_planner.cli.run import parser  # noqa: PLC0415 - takes long enough for a Ctrl-C

    arguments = parser().parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
