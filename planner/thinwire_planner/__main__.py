"""The command `thinwire`."""

from __future__ import annotations

import signal
import sys

from thinwire_common.logs import print_error
from thinwire_planner.cli.parser import parser
from thinwire_proto.errors import ThinwireError

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ended, as shells have it."""


def main() -> None:
    arguments = parser().parse_args()
    try:
        arguments.command(arguments)
    except ThinwireError as error:
        print_error("thinwire", error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
