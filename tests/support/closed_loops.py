"""Keeps the late events of gRPC calls of an ended test out of the log of the next one.

gRPC has one poller a process. It hands each event to the loop that runs, which passes it on to the loop of the call.
A test ends with its loop, and a call that was cancelled shortly before has its last event afterwards: the loop of the
next test finds the call's loop closed, and asyncio logs that as an error of the next test.
"""

from __future__ import annotations

import logging


def is_of_this_test(record: logging.LogRecord) -> bool:
    """False for the event of a call whose loop is closed: the test that made the call has ended."""
    error = record.exc_info[1] if record.exc_info else None
    is_late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return not (is_late and "PollerCompletionQueue._handle_events" in record.getMessage())
