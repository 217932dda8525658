"""Runs a program's command, and ends the process with an exit status and one line that says why."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from thinwire_common.early_signals import end_at_once
from thinwire_common.open_files import raise_open_files
from thinwire_proto.clean_text import shown_as_written
from thinwire_proto.errors import ThinwireError, UsageError

FAILED = 1
WRONG_USAGE = 2
"""Exit status after a wrong option or variable, as argparse has it."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ended, as shells have it."""
IMPORTING = "importlib._bootstrap"
"""The module whose functions are on the stack during an import."""
OWNER_MASK = 0o700
UNREAD = 141
"""Exit status of a command whose output nobody reads any more, as behind `| head`: 128 + SIGPIPE."""


def run_program(name: str, command: Callable[[], None], tell_failure: Callable[[str], None] | None = None) -> None:
    """Run a command of a program. tell_failure: logs the error that ends it as an event, if the log is JSON."""
    _open_standard_streams()
    raise_open_files()
    os.umask(os.umask(OWNER_MASK) & ~OWNER_MASK)  # whoever starts it can read what it writes, whatever the umask
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
    except (OSError, ImportError, MemoryError, RuntimeError) as error:
        _end_output()
        _fail(name, _machine_in_words(error), tell_failure)
    except UsageError as error:
        _fail(name, str(error), tell_failure, WRONG_USAGE)
    except ThinwireError as error:
        _fail(name, str(error), tell_failure)


def _machine_in_words(error: Exception) -> str:
    """What an error of the system means. Raises other errors again."""
    from thinwire_common.os_errors import in_words, is_of_machine, limit_in_words  # noqa: PLC0415 - long enough

    if words := limit_in_words(error):
        return words
    if not isinstance(error, OSError):
        raise error
    return in_words(error) if is_of_machine(error) else f"{error}; check the path and its permissions"


def _open_standard_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, and lead them nowhere.

    Otherwise a socket or the ledger would get their numbers, and libraries would write messages into it, or give up:
    libuv closes no handle with such a number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - as long as it


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
    if is_ours and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end_at_once):
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


def print_pieces(pieces: Iterable[str]) -> None:
    """Print pieces of text at once, and the end of a line. Ends quietly when the program that reads them has ended."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    seen = shown_as_written if sys.stdout.isatty() else str  # strangers trained the model; a file gets what it wrote
    try:
        for piece in pieces:
            print(seen(piece), end="", flush=True)
        print(flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails when it flushes at exit
