"""Tests that nobody who reads a log can stop the program that writes it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from thinwire_common.log_stream import LINES_KEPT_MAX, handler_for
from thinwire_common.logs import formatter

PIPE_BYTES = 1 << 16
"""About as much as a pipe holds: less than the lines of a test."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The end that reads, and the stream that writes."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        yield reading, stream
    os.close(reading)


def opened(stream: TextIO, name: str = "text") -> logging.Handler:
    handler = handler_for(stream)
    handler.setFormatter(formatter(name))
    return handler


def say(handler: logging.Handler, text: str) -> None:
    handler.handle(logging.makeLogRecord({"name": "thinwire.test", "msg": text}))


def read_all(reading: int, handler: logging.Handler) -> str:
    """Everything that the handler still writes. Fails if it stops before the last line."""
    found = b""
    while not found.endswith(b"the last line\n") and b'the last line"' not in found:
        found += os.read(reading, PIPE_BYTES)
        handler.flush()
    return found.decode()


def test_lines_are_kept_while_nobody_reads_and_written_when_somebody_does(pipe: tuple[int, TextIO]) -> None:
    """Without the handler, the first line that the pipe has no room for blocks this test for ever."""
    reading, stream = pipe
    handler = opened(stream)
    long = "x" * 1000
    sent = LINES_KEPT_MAX - 1
    for number in range(sent):
        say(handler, f"line {number} {long}")
    say(handler, "the last line")
    found = read_all(reading, handler)
    assert "line 0 " in found
    assert f"line {sent - 1} " in found
    assert all(line.count("line") == 1 for line in found.splitlines())  # none is torn
