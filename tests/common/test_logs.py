"""Log lines: their content in both formats, and a reader who cannot stop the program that writes them."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pty
import struct
import termios
import time
from collections.abc import Iterator
from typing import TextIO

import pytest

from deploy.local_swarm.daemon_log import events, readable
from thinwire_common.log_stream import LINES_KEPT_MAX, handler_for
from thinwire_common.logs import formatter, tell


def lines(caplog: pytest.LogCaptureFixture, name: str) -> str:
    return "\n".join(formatter(name).format(record) for record in caplog.records)


def test_an_event_has_its_id_and_fields_in_json_and_its_sentence_in_both(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("thinwire.test")
    tell(log, logging.WARNING, "coordinator.round_void", "round 3 is void: 100% late", round=3, reason="100% late")
    log.warning("step %d\nof “%s”", 3, "x")
    first, second = (json.loads(line) for line in lines(caplog, "json").splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "warning",
        "logger": "thinwire.test",
        "message": "round 3 is void: 100% late",
        "event": "coordinator.round_void",
        "round": 3,
        "reason": "100% late",
    }
    del second["time"]
    assert second == {"level": "warning", "logger": "thinwire.test", "message": "step 3\nof “x”"}
    texts = [formatter("text").format(record).split(" ", 2)[2] for record in caplog.records]
    assert texts == ["round 3 is void: 100% late", "step 3\n  of “x”"]


def test_a_json_log_reads_like_the_text_and_its_events_are_found(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("thinwire.test")
    for step in (1, 2):
        tell(log, logging.WARNING, "coordinator.snapshot_written", f"step {step}: snapshot written", step=step)
    text = "Fatal Python error\n" + lines(caplog, "json")
    assert [event["step"] for event in events(text, "coordinator.snapshot_written")] == [1, 2]
    assert [readable(line).partition(" ")[2] for line in text.splitlines()] == [
        "Python error",
        "step 1: snapshot written",
        "step 2: snapshot written",
    ]


def test_the_first_line_of_a_day_has_the_date() -> None:
    text, day_s = formatter("text"), 86_400
    noon_s = time.mktime((2026, 11, 24, 12, 0, 0, 0, 0, -1))
    lines = []
    for at_s in (noon_s, noon_s + 60, noon_s + day_s):
        record = logging.makeLogRecord({"msg": "x"})
        record.created = at_s
        lines.append(text.format(record))
    assert lines == ["2026-11-24 12:00:00 x", "12:01:00 x", "2026-11-25 12:00:00 x"]


def test_on_a_terminal_lines_are_wrapped_between_words() -> None:
    ours, theirs = pty.openpty()
    long = "the coordinator at 192.0.2.1:7700 has not answered for a minute, so this node connects again in a moment"
    path = "/" + "long-word/" * 10
    record = logging.makeLogRecord({"msg": f"{long}\n{long} {path}"})
    with os.fdopen(ours), os.fdopen(theirs, "w") as stream:
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        text = formatter("text", stream)
        text.format(logging.makeLogRecord({"msg": "the first of the day"}))
        lines = text.format(record).splitlines()
        json_line = formatter("json", stream).format(record)
    assert [line[9:] if number < 2 else line for number, line in enumerate(lines)] == [
        "the coordinator at 192.0.2.1:7700 has not answered for a minute, so",
        "this node connects again in a moment",
        "  the coordinator at 192.0.2.1:7700 has not answered for a minute, so this node",
        "  connects again in a moment",
        f"  {path}",
    ]
    assert lines[1][:9].isspace()
    assert "\n" not in json_line
    file = formatter("text")
    file.format(logging.makeLogRecord({"msg": "the first of the day"}))
    assert file.format(record).splitlines()[0][9:] == long


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
