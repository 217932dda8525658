"""Runs a program's command, and ends the process with an exit status and one line that says why."""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from thinwire_proto.errors import MEND_DISK, ThinwireError, UsageError

FAILED = 1
WRONG_USAGE = 2
"""Exit status after a wrong option or variable, as argparse has it."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ended, as shells have it."""
IMPORTING = "importlib._bootstrap"
"""The module whose functions are on the stack during an import."""
UNREAD = 141
"""Exit status of a command whose output nobody reads any more, as behind `| head`: 128 + SIGPIPE."""


def run_program(name: str, command: Callable[[], None], tell_failure: Callable[[str], None] | None = None) -> None:
    """Run a command of a program. tell_failure: logs the error that ends it as an event, if the log is JSON."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # tables and names have characters that ASCII and Latin-1 lack
    try:
        with _interruptible_imports():
            _run(name, command, tell_failure)
    except KeyboardInterrupt:
        _ignore_interrupts()
        sys.exit(INTERRUPTED)
    finally:
        atexit.register(_ignore_interrupts)


def _run(name: str, command: Callable[[], None], tell_failure: Callable[[str], None] | None) -> None:
    try:
        command()
        sys.stdout.flush()
    except BrokenPipeError:
        _end_output()
        sys.exit(UNREAD)
    except OSError as error:
        _end_output()
        fails = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        text = f"the disk fails: {error}; {MEND_DISK}" if fails else f"{error}; check the path and its permissions"
        _fail(name, text, tell_failure)
    except UsageError as error:
        _fail(name, str(error), tell_failure, WRONG_USAGE)
    except ThinwireError as error:
        _fail(name, str(error), tell_failure)


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that tell a daemon to leave in good order.

    SIGHUP comes when its terminal is closed. It is none of them if the daemon was started to ignore it, as by nohup."""
    found = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        found.append(hang_up)
    return tuple(found)


@contextmanager
def _interruptible_imports() -> Iterator[None]:
    """Inside the block, Ctrl-C in the middle of an import ends the process at once.

    torch catches whatever the import of numpy raises. The program then went on with half of numpy, and failed or could
    not be stopped."""
    is_ours = threading.current_thread() is threading.main_thread()
    if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if is_ours and signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    while frame is not None:
        if frame.f_globals.get("__name__") == IMPORTING:
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _ignore_interrupts() -> None:
    """The interpreter needs a while to end a program with torch. Ctrl-C would then kill it, or print a traceback."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fail(name: str, text: str, tell_failure: Callable[[str], None] | None, status: int = FAILED) -> NoReturn:
    from thinwire_common.logs import logs_json, print_error  # noqa: PLC0415 - long enough for a Ctrl-C

    if tell_failure is not None and logs_json():
        tell_failure(text)
    else:
        print_error(name, text)
    sys.exit(status)


def _end_output() -> None:
    """Write what can be written. The interpreter flushes once more at its end, and would print that this failed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
