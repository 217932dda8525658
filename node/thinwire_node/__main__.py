"""The command `thinwire-node`."""

from __future__ import annotations

import os

from thinwire_common.early_signals import obey_signals_early

OFFLINE = {"HF_HUB_OFFLINE": "1", "USE_HUB_KERNELS": "NO"}
"""A node takes all that it runs from its own packages, and all that it trains on from the run. So libraries that could
fetch models or kernels from a hub are told not to, before they are imported."""


def main() -> None:
    obey_signals_early()

    from thinwire_common.program import run_program  # noqa: PLC0415 - long enough for a Ctrl-C

    for variable, value in OFFLINE.items():
        os.environ.setdefault(variable, value)
    run_program("thinwire-node", _run, _tell_failure)


def _run() -> None:
    from thinwire_node.cli.parser import parser  # noqa: PLC0415 - takes long enough for a Ctrl-C

    arguments = parser().parse_args()
    arguments.command(arguments)


def _tell_failure(text: str) -> None:
    import logging  # noqa: PLC0415

    from thinwire_common.logs import tell  # noqa: PLC0415

    tell(logging.getLogger("thinwire.node"), logging.ERROR, "node.failed", text)


if __name__ == "__main__":
    main()
