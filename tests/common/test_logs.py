"""Tests of the content of log lines in both formats."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator

import pytest

from deploy.local_swarm.daemon_log import events, readable
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


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, without pytest's handlers: log_to would close them."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.handlers.clear()
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers
