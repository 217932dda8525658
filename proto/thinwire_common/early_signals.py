"""Ends a program that is still being loaded, when a signal tells it to.

A module of its own, which imports almost nothing: it has to be there before the others are.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process as the signal would."""
    os._exit(128 + number)


def obey_signals_early() -> None:
    """Let Ctrl-C end this process without a traceback while it imports what it needs.

    In process 1, the first one of a container, SIGTERM and SIGHUP do so too: the system ignores those that have no
    handler there, and the container could not be stopped."""
    _handle(signal.SIGINT, signal.default_int_handler)
    if os.getpid() == 1:
        for name in ("SIGTERM", "SIGHUP"):  # Windows lacks one
            if (number := getattr(signal, name, None)) is not None:
                _handle(number, signal.SIG_DFL)


def _handle(number: int, usual: object) -> None:
    if signal.getsignal(number) is usual or signal.getsignal(number) == usual:
        try:
            signal.signal(number, end_at_once)
        except ValueError:  # this is not the main thread
            return
