"""Bounds what a process logs, whatever its peers do: bytes of each kind of line, bytes of all, and bytes of one line.

A stranger can cause lines without end: texts that change, calls that fail, tracebacks. A limit on each cause would be
forgotten for the next one. A limit on the whole log alone would let a flood push out every other line. So each kind of
line has a token bucket of bytes, and all kinds share a second one. A kind is an event, or a place in the code, so that
no stranger can make up kinds. One line of each kind passes every LEAST_EVERY_S, even if the shared bucket is empty. The
buckets are large enough that a run without a flood loses no line.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable

LINE_BYTES_MAX = 8000
"""Bytes of one line with its traceback; a longer one is cut."""
HEAD_BYTES = 100
"""Bytes of time, level and names in each line, roughly."""
KIND_BYTES, KIND_BYTES_PER_S = 256 << 10, 400.0
PROCESS_BYTES, PROCESS_BYTES_PER_S = 1 << 20, 800.0
"""Burst and lasting rate of one kind, and of the process: below 1 kB a second with what always passes."""
LEAST_EVERY_S = 60.0
TELL_EVERY_S = 60.0
KINDS_TOLD_MAX = 5
CUT = " … (cut)"


class _Bucket:
    """A token bucket of bytes. It may go into debt for a line that always passes."""

    def __init__(self, size: float, per_s: float, now: float) -> None:
        self._size, self._per_s = size, per_s
        self._left, self._at = size, now
        self.passed_at = now - LEAST_EVERY_S

    def refill(self, now: float) -> float:
        """The bytes that are left now."""
        self._left = min(self._size, self._left + self._per_s * max(0.0, now - self._at))
        self._at = now
        return self._left

    def take(self, size: int) -> None:
        self._left = max(-self._size, self._left - size)


class LogBound(logging.Filter):
    """A filter for a handler. It cuts long records and leaves out what exceeds the buckets; see the module."""

    def __init__(self, handler: logging.Handler, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler = handler
        self._now = now
        self._whole = _Bucket(PROCESS_BYTES, PROCESS_BYTES_PER_S, now())
        self._kinds: dict[str, _Bucket] = {}
        self._left_out: dict[str, int] = {}
        self._told_at = now() - TELL_EVERY_S
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            size = _cut(record)
        except Exception:  # noqa: BLE001 - the handler meets the same one, and tells which line cannot be formatted
            size = LINE_BYTES_MAX
        with self._lock:
            passes = self._passes(_kind(record), size, self._now())
            told = self._told(self._now())
        if told:
            self._handler.acquire()
            try:
                self._handler.emit(
                    logging.makeLogRecord(
                        {"name": "thinwire", "levelno": logging.WARNING, "levelname": "WARNING", "msg": told}
                    )
                )
            finally:
                self._handler.release()
        return passes

    def _passes(self, kind: str, size: int, now: float) -> bool:
        bucket = self._kinds.get(kind)
        if bucket is None:
            bucket = self._kinds[kind] = _Bucket(KIND_BYTES, KIND_BYTES_PER_S, now)
        has_room = min(bucket.refill(now), self._whole.refill(now)) >= size
        if not has_room and now - bucket.passed_at < LEAST_EVERY_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        bucket.passed_at = now
        bucket.take(size)
        self._whole.take(size)
        return True

    def _told(self, now: float) -> str:
        """A sentence that says what was left out; empty if nothing was, or if the last such line is recent."""
        if not self._left_out or now - self._told_at < TELL_EVERY_S:
            return ""
        self._told_at = now
        most = sorted(self._left_out.items(), key=lambda entry: -entry[1])
        words = [f"{count} of {kind}" for kind, count in most[:KINDS_TOLD_MAX]]
        if len(most) > KINDS_TOLD_MAX:
            words.append(f"{sum(count for _, count in most[KINDS_TOLD_MAX:])} others")
        total = sum(self._left_out.values())
        self._left_out.clear()
        return f"left out {total} log lines, because there are too many of them: {', '.join(words)}"


def _kind(record: logging.LogRecord) -> str:
    event = getattr(record, "event", None)
    return event if isinstance(event, str) else f"{record.name} ({record.filename}:{record.lineno})"


def _cut(record: logging.LogRecord) -> int:
    """Cut what is too long in a record, traceback included. Returns roughly its size in bytes."""
    message = record.getMessage()
    size = len(message.encode(errors="replace"))
    if size > LINE_BYTES_MAX:
        record.msg, record.args = _shortened(message, LINE_BYTES_MAX), ()
        size = LINE_BYTES_MAX
    if record.exc_info and record.exc_info[0] is not None:
        text = record.exc_text or logging.Formatter().formatException(record.exc_info)
        record.exc_text = _tail(text, LINE_BYTES_MAX)  # formatters take it from here
        size += len(record.exc_text.encode(errors="replace"))
    fields = getattr(record, "fields", None)
    if fields:
        written = len(json.dumps(fields, default=str))
        if written > LINE_BYTES_MAX:
            record.fields = fields = {
                name: _shortened(value, 1000) if isinstance(value, str) else value for name, value in fields.items()
            }
            written = len(json.dumps(fields, default=str))
        size += written
    return size + HEAD_BYTES


def _shortened(text: str, bytes_max: int) -> str:
    """The beginning of a text."""
    data = text.encode(errors="replace")
    return text if len(data) <= bytes_max else data[:bytes_max].decode(errors="ignore") + CUT


def _tail(text: str, bytes_max: int) -> str:
    """The end of a traceback, where the error stands, and its first line."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return text
    return f"{text.splitlines()[0][:200]}\n  …\n{data[-bytes_max:].decode(errors='ignore')}"
