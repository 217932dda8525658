"""No peer decides how much is logged: each kind of line and the whole log are bounded, and what is left out is said."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from thinwire_common.log_bound import KIND_BYTES, LINE_BYTES_MAX, PROCESS_BYTES, TELL_EVERY_S, LogBound
from thinwire_common.logs import formatter, log_to, tell

log = logging.getLogger("thinwire.test")
LONG_S = 900


class Bounded:
    """A root logger whose clock a test moves. text: what it has written."""

    def __init__(self, name: str) -> None:
        self.now = 0.0
        self._out = io.StringIO()
        self.handler = logging.StreamHandler(self._out)
        self.handler.setFormatter(formatter(name))
        log_to(self.handler, "debug")
        self.handler.filters = [LogBound(self.handler, lambda: self.now)]

    def alone(self) -> None:
        """Leave out pytest's own handlers, which keep every record."""
        logging.getLogger().handlers[:] = [self.handler]

    @property
    def text(self) -> str:
        return self._out.getvalue()


@pytest.fixture(params=["text", "json"])
def bounded(request: pytest.FixtureRequest) -> Iterator[Bounded]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.handlers.clear()
    yield Bounded(request.param)
    logging.captureWarnings(False)
    root.setLevel(level)
    root.handlers[:] = handlers


def an_event(number: int) -> None:
    tell(log, logging.INFO, "node.waiting", f"waiting {number}", reason=f"reason {number} " + "x" * 200)


def a_made_up_sentence(number: int) -> None:
    log.warning("".join([f"sentence {number}", "y" * 200]))  # what stands there differs each time


def a_foreign_library(number: int) -> None:
    logging.getLogger("uvicorn.error").error("request %d failed", number)


def a_traceback(number: int) -> None:
    try:
        raise ValueError(f"{number}" + "z" * 500)
    except ValueError:
        logging.getLogger("asyncio").exception("a task failed")


@pytest.mark.parametrize("cause", [an_event, a_made_up_sentence, a_foreign_library, a_traceback])
def test_a_flood_of_one_kind_stays_below_its_burst_and_1_kb_a_second(
    cause: Callable[[int], None], bounded: Bounded
) -> None:
    bounded.alone()
    for number in range(6000):
        cause(number)
    first = len(bounded.text)
    assert KIND_BYTES / 20 < first < 1.5 * KIND_BYTES + 3000
    for number in range(LONG_S):
        bounded.now += 1
        for _ in range(3):
            cause(number)
    assert len(bounded.text) - first < 1000 * LONG_S
    assert "left out" in bounded.text


def test_floods_of_all_kinds_stay_below_1_kb_a_second_and_other_lines_still_pass(bounded: Bounded) -> None:
    bounded.alone()
    for event in range(40):
        for number in range(500):
            tell(log, logging.INFO, f"test.kind_{event}", "w" * 200, number=number)
    first = len(bounded.text)
    assert first < 1.5 * PROCESS_BYTES
    for _ in range(LONG_S // 10):
        bounded.now += 10
        for event in range(40):
            for _ in range(4):
                tell(log, logging.INFO, f"test.kind_{event}", "w" * 200)
    assert len(bounded.text) - first < 1000 * LONG_S
    log.error("the disk is full")
    assert "the disk is full" in bounded.text


def test_what_is_left_out_is_said_once_a_minute_with_its_kinds(bounded: Bounded) -> None:
    bounded.alone()
    while "left out" not in bounded.text:
        an_event(0)
    for _ in range(99):
        an_event(0)
    assert bounded.text.count("left out") == 1
    bounded.now += TELL_EVERY_S
    log.info("another line")
    assert "left out 99 log lines" in bounded.text
    assert "99 of node.waiting" in bounded.text


def test_long_lines_are_cut(bounded: Bounded) -> None:
    bounded.alone()
    tell(log, logging.INFO, "node.waiting", "é" * 10**6, reason="ü" * 10**6)
    try:
        raise ValueError("the end " * 10**5 + "is kept")
    except ValueError:
        log.exception("%s", "ö" * 10**6)
    assert len(bounded.text) < 5 * LINE_BYTES_MAX
    assert "is kept" in bounded.text
    if isinstance(bounded.handler.formatter, type(formatter("json"))):
        assert [json.loads(line)["level"] for line in bounded.text.splitlines()] == ["info", "error"]
