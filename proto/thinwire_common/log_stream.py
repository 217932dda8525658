"""A log handler that never waits for a reader of the log.

A pipe that nobody empties blocks every process that writes to it: a pager, a supervisor that hangs, `ssh` from a laptop
that sleeps. So the handler writes only while the file has room. Otherwise it keeps the newest lines until there is room
again, and then says how many it has dropped.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque
from typing import TextIO

from thinwire_proto import limits

LINES_KEPT_MAX = 1000
"""Lines kept while nobody reads the log. The oldest are dropped first."""


def handler_for(stream: TextIO) -> logging.Handler:
    """A handler that writes to a stream. It never waits if the stream is a file of the system that can be asked."""
    try:
        stream.fileno()
    except (OSError, ValueError):  # it is in memory
        return logging.StreamHandler(stream)
    # Windows asks sockets alone whether they have room
    return UnblockedHandler(stream) if hasattr(select, "PIPE_BUF") else logging.StreamHandler(stream)


class UnblockedHandler(logging.Handler):
    """Writes log lines to the file of a stream, past the stream's own buffer and lock."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._file = stream.fileno()
        self._encoding = stream.encoding
        self._rest = b""  # of the line that is being written
        self._kept: deque[bytes] = deque()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._encoded(record)
        except Exception:  # noqa: BLE001 - as in logging's own handlers: it tells which line cannot be formatted
            self.handleError(record)
            return
        if len(self._kept) >= LINES_KEPT_MAX:
            self._kept.popleft()
            self._dropped += 1
        self._kept.append(line)
        self._write(0.0)

    def flush(self) -> None:
        """Write what there is room for."""
        self._write_kept(wait_s=0.0)

    def close(self) -> None:
        """Write what is kept. Waits at most TERMINAL_CLOSE_S for a reader."""
        self._write_kept(limits.TERMINAL_CLOSE_S)
        super().close()

    def _write_kept(self, wait_s: float) -> None:
        self.acquire()
        try:
            self._write(wait_s)
        finally:
            self.release()

    def _write(self, wait_s: float) -> None:
        """Write what there is room for, or will be within `wait_s`."""
        until = time.monotonic() + wait_s
        try:
            while (self._rest or self._kept) and self._has_room(max(0.0, until - time.monotonic())):
                if not self._rest:
                    self._rest = self._told_dropped() or self._kept.popleft()
                self._rest = self._rest[os.write(self._file, self._rest[: select.PIPE_BUF]) :]
        except (OSError, ValueError):  # the file is closed, or its reader is gone; the program goes on without a log
            self._rest = b""
            self._kept.clear()

    def _has_room(self, wait_s: float) -> bool:
        """Whether the file takes PIPE_BUF bytes without blocking."""
        return bool(select.select((), (self._file,), (), wait_s)[1])

    def _told_dropped(self) -> bytes:
        """A line that says how many lines were dropped; empty if none were."""
        dropped, self._dropped = self._dropped, 0
        if not dropped:
            return b""
        text = f"{dropped} log lines were dropped, because nothing read the log"
        return self._encoded(logging.makeLogRecord({"name": "thinwire", "levelname": "WARNING", "msg": text}))

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, errors="replace")
