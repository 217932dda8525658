"""Tests of the content of log lines in both formats."""

from __future__ import annotations

import json
import logging

import pytest

from deploy.local_swarm.daemon_log import events, readable
from thinwire_common.logs import formatter, log_to, tell


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
    texts = [formatter("text").format(record).partition(" ")[2] for record in caplog.records]
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


def test_torch_logs_nothing_but_warnings() -> None:
    root, torch = logging.getLogger(), logging.getLogger("torch")
    before = root.level, list(root.handlers)
    root.handlers.clear()  # log_to would close them
    torch.setLevel(logging.NOTSET)  # as it is while torch is imported
    try:
        log_to(logging.NullHandler(), "debug")
        assert not torch.getChild("internals").isEnabledFor(logging.INFO)
        assert torch.getChild("internals").isEnabledFor(logging.WARNING)
        assert logging.getLogger("thinwire.test").isEnabledFor(logging.INFO)
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]
