"""The node's live view on a real pseudo-terminal, as a terminal emulator shows it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from support.reports import small_report
from support.screen import Screen
from thinwire_node.observe.terminal import Terminal

REPORT = small_report()


@pytest.fixture
def screen() -> Iterator[Screen]:
    found = Screen()
    yield found
    found.close()


@pytest.fixture
def terminal(screen: Screen) -> Iterator[Terminal]:
    with os.fdopen(os.dup(screen.end), "w") as stream:
        found = Terminal(stream)
        found.open()
        yield found
        found.close()


def say(terminal: Terminal, text: str) -> None:
    terminal.handle(logging.LogRecord("thinwire.node", logging.INFO, "", 0, text, None, None))


def view(lines: list[str]) -> list[str]:
    """The lines of the live view, without the log lines above it."""
    return lines[next(number for number, line in enumerate(lines) if line.startswith("thinwire · ")) :]


def test_log_lines_scroll_above_the_live_view(screen: Screen, terminal: Terminal) -> None:
    terminal.show(REPORT)
    first = screen.shows(lambda lines: "step 117 of 200" in "".join(lines))
    assert view(first) == first  # no log lines yet
    for number in range(100):  # more than the screen has rows
        say(terminal, f"line {number}")
    terminal.show(replace(REPORT, part=replace(REPORT.part, step=118)))
    found = screen.shows(lambda lines: "step 118 of 200" in "".join(lines) and "line 99" in lines)
    assert len(found) == 23  # the cursor is in the last row
    assert found[: len(found) - len(first)] == [f"line {number}" for number in range(100 - 23 + len(first), 100)]
    assert len(view(found)) == len(first)
    assert screen.cursor == (0, 23)


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_view_follows_a_resize_and_fits_a_narrow_terminal(screen: Screen, terminal: Terminal, columns: int) -> None:
    say(terminal, "a line that was there before")
    terminal.show(REPORT)
    wide = screen.shows(lambda lines: "step 117 of 200" in "".join(lines))
    screen.resize(columns, 24)
    terminal.show(replace(REPORT, words="waiting: the lease is used up"))
    found = screen.shows(lambda lines: "waiting" in "".join(lines) and "device       cpu" in "".join(lines))
    assert found[0] == "a line that was there before"
    assert found[1:] == view(found)
    assert all(len(line) < columns for line in found)
    assert (len(found) > len(wide)) == (columns < 72)
    assert "tokens       1,204,224 counted" in "\n".join(found)


def test_a_blocked_terminal_does_not_block_the_node(screen: Screen, terminal: Terminal) -> None:
    """Without a reader, the pseudo-terminal is full after a few kilobytes."""
    done = threading.Event()

    def node() -> None:
        for number in range(5000):
            say(terminal, f"line {number} of a log without a reader")
            terminal.show(replace(REPORT, part=replace(REPORT.part, step=number)))
        done.set()

    threading.Thread(target=node, daemon=True).start()
    assert done.wait(30)
    screen.shows(lambda lines: "line 4999 of a log without a reader" in lines)


def test_control_characters_in_texts_cannot_move_the_cursor(screen: Screen, terminal: Terminal) -> None:
    terminal.show(replace(REPORT, words="waiting for \x1b[2J\x1b[10;10Hyou\nto see"))
    say(terminal, "not counted: \x1b]0;title\x07\x1b[5Aboo")
    found = screen.shows(lambda lines: "boo" in lines[0])
    assert view(found)[0] == "thinwire · node-1 · waiting for you to see"
