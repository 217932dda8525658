"""The command `thinwire`."""

from __future__ import annotations

from thinwire_common.program import run_program


def main() -> None:
    run_program("thinwire", _run)


def _run() -> None:
    from thinwire_planner.cli.parser import parser  # noqa: PLC0415 - takes long enough for a Ctrl-C

    arguments = parser().parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
