"""Logging as text or as one JSON object per line, and events, which programs may rely on.

A log may quote strangers. So both formatters write nothing that a terminal would obey or that nobody would see, and a
line break inside of a message begins no line that looks like another message. On a terminal, text is wrapped between
words, because a terminal wraps inside of them. A file has each message on one line, for grep.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
from datetime import datetime, timezone
from typing import TextIO

from thinwire_common.log_bound import LogBound
from thinwire_common.log_stream import handler_for
from thinwire_proto.clean_text import clean_text, escaped_in_json, shown_as_written

INDENT = "  "
"""Before each further line of a message."""
COLUMNS_LEAST = 20
"""Narrower terminals wrap by themselves."""
ERROR_BYTES_MAX = 8000
GRPC_CALLS = "grpc.aio._call"
"""The logger of gRPC's calls. With level `debug` it logs the traceback of what ends the sending half of a stream."""
CANCELLED = "asyncio.exceptions.CancelledError"


def tell(
    log: logging.Logger,
    level: int,
    event: str,
    sentence: str,
    /,
    *,
    exc_info: BaseException | None = None,
    **fields: object,
) -> None:
    """Log an event: an id of `event_ids` and its fields for programs, and a sentence for people.

    The id and the fields are an interface; the sentence may change at any time. fields: values that JSON can represent.
    exc_info: an exception whose traceback is logged too.
    """
    log.log(level, "%s", sentence, exc_info=exc_info, extra={"event": event, "fields": fields})


class JsonFormatter(logging.Formatter):
    """time (UTC), level, logger and message; an event adds its id as `event` and its fields, an exception its text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if event is not None:
            line |= {"event": event} | getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        return escaped_in_json(json.dumps(line, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """The time and the message; further lines of it are indented. The first line of each day has the date too, because
    a node runs for weeks. stream: if it is a terminal, lines are wrapped, and the rest of one stands below its text."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")
        self._date = ""
        self._stream = stream

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        date, self._date = self._date, super().formatTime(record, "%Y-%m-%d")
        clock = super().formatTime(record, datefmt)
        return clock if date == self._date else f"{self._date} {clock}"

    def format(self, record: logging.LogRecord) -> str:
        first, *more = shown_as_written(super().format(record)).split("\n")
        columns, below = _columns(self._stream), " " * len(f"{record.asctime} ")
        found = [_wrapped(first, below, columns), *(_wrapped(INDENT + line, INDENT, columns) for line in more)]
        return "\n".join(found)


def _wrapped(line: str, indent: str, columns: int | None) -> str:
    """A line wrapped between words. A word that is too long stays whole, so that it can be copied."""
    if columns is None or len(line) <= columns:
        return line
    return textwrap.fill(
        line,
        columns,
        subsequent_indent=indent,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns(stream: TextIO | None) -> int | None:
    """The columns of a terminal that may be written to; None for any other file."""
    try:
        if stream is None or not stream.isatty():
            return None
        columns = os.get_terminal_size(stream.fileno()).columns - 1  # in the last one, some begin a new line
    except (OSError, ValueError):
        return None
    return columns if columns >= COLUMNS_LEAST else None


def formatter(name: str, stream: TextIO | None = None) -> logging.Formatter:
    """The formatter for `text` or `json`. stream: see `TextFormatter`."""
    return JsonFormatter() if name == "json" else TextFormatter(stream)


def log_to_stderr(level: str, name: str = "text") -> None:
    """Log to stderr, without waiting for a reader. name: text or json."""
    handler = handler_for(sys.stderr)
    handler.setFormatter(formatter(name, sys.stderr))
    log_to(handler, level)


def log_to(handler: logging.Handler, level: str) -> None:
    """Log to `handler` only; it replaces all earlier handlers. Warnings of Python go there too.

    `log_bound` limits what all loggers together write, because peers can cause lines."""
    handler.addFilter(LogBound(handler))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("torch").setLevel(logging.WARNING)  # below that it logs its internals, at its end too
    logging.getLogger(GRPC_CALLS).addFilter(_is_no_cancellation)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether a record of gRPC's calls is more than the traceback of a stream that was cancelled, as each one is that
    ends before the other side ends it."""
    return not any(str(part).rstrip().endswith(CANCELLED) for part in record.args or ())


def print_error(program: str, error: object) -> None:
    """Write the error that ends a program to stderr, for people: one line, which a terminal shows wrapped."""
    line = f"{program}: {clean_text(str(error), ERROR_BYTES_MAX)}"
    print(_wrapped(line, INDENT, _columns(sys.stderr)), file=sys.stderr)


def logs_json() -> bool:
    """Whether the log consists of JSON lines."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
