"""Entry point of the command `thinwire-coordinator`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import NoReturn

from thinwire_common.logs import log_to_stderr, logs_json, print_error, tell
from thinwire_common.options import read_options
from thinwire_coordinator.cli.options import CommonOptions
from thinwire_coordinator.cli.parser import parser
from thinwire_proto.errors import MEND_DISK, ThinwireError

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ended, as shells have it."""
UNREAD = 141
"""Exit status of a command whose output nobody reads any more, as behind `| head`: 128 + SIGPIPE."""

log = logging.getLogger("thinwire.coordinator")


def main() -> None:
    arguments = parser().parse_args()
    try:
        log_to_stderr(read_options(CommonOptions, arguments).log_level)
        arguments.command(arguments)
        sys.stdout.flush()
    except ThinwireError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more
        sys.exit(UNREAD)
    except OSError as error:
        _fail(f"the disk fails: {error}; {MEND_DISK}")


def _fail(text: str) -> NoReturn:
    if logs_json():
        tell(log, logging.ERROR, "coordinator.failed", text)
    else:
        print_error("thinwire-coordinator", text)
    sys.exit(1)


if __name__ == "__main__":
    main()
