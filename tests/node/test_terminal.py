"""The live view on a real pty, as an emulator shows it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from support.reports import small_report
from support.screen import Screen
from thinwire_node.observe.terminal import Terminal, can_show

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
    """The view's own lines: from its head on."""
    return lines[next(number for number, line in enumerate(lines) if line.startswith("thinwire · ")) :]


def test_log_lines_run_above_one_view_that_changes(screen: Screen, terminal: Terminal) -> None:
    terminal.show(REPORT)
    first = screen.shows(lambda lines: "step 117 of 200" in "".join(lines))
    assert view(first) == first  # nothing above it yet
    for number in range(100):  # more than the screen has rows
        say(terminal, f"line {number}")
    terminal.show(replace(REPORT, place=replace(REPORT.place, step=118)))
    found = screen.shows(lambda lines: "step 118 of 200" in "".join(lines) and "line 99" in lines)
    assert len(found) == 23  # the last row is the cursor's
    assert found[: len(found) - len(first)] == [f"line {number}" for number in range(100 - 23 + len(first), 100)]
    assert len(view(found)) == len(first)
    assert screen.cursor == (0, 23)


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_it_fits_into_a_narrow_terminal_and_follows_a_resize(screen: Screen, terminal: Terminal, columns: int) -> None:
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


def test_a_terminal_with_few_rows_shows_the_head(screen: Screen, terminal: Terminal) -> None:
    screen.resize(80, 4)
    terminal.show(REPORT)
    found = screen.shows(lambda lines: "step 117 of 200" in "".join(lines))
    assert len(found) == 3
    terminal.show(replace(REPORT, words="leaving"))
    assert screen.shows(lambda lines: "leaving" in lines[0])[1:] == found[1:]


def test_whoever_stops_the_terminal_does_not_stop_the_node(screen: Screen, terminal: Terminal) -> None:
    """Nobody reads what is written: the pty is full after a few kilobytes."""
    done = threading.Event()

    def node() -> None:
        for number in range(5000):
            say(terminal, f"line {number} of a log that nobody takes from the terminal")
            terminal.show(replace(REPORT, place=replace(REPORT.place, step=number)))
        done.set()

    threading.Thread(target=node, daemon=True).start()
    assert done.wait(30)
    screen.shows(lambda lines: "line 4999 of a log that nobody takes from the terminal" in lines)


def test_what_others_wrote_cannot_move_the_cursor(screen: Screen, terminal: Terminal) -> None:
    terminal.show(replace(REPORT, words="waiting for \x1b[2J\x1b[10;10Hyou\nto see"))
    say(terminal, "not counted: \x1b]0;title\x07\x1b[5Aboo")
    found = screen.shows(lambda lines: "boo" in lines[0])
    assert view(found)[0] == "thinwire · node-1 · waiting for  [2J [10;10Hyou to see"


def test_the_last_frame_stays_and_the_cursor_stands_below_it(screen: Screen, terminal: Terminal) -> None:
    terminal.show(replace(REPORT, state="left", words="left"))
    say(terminal, "counted 117 times")
    terminal.close()
    found = screen.lines()
    assert found[:2] == ["counted 117 times", "thinwire · node-1 · left"]
    assert screen.cursor == (0, len(found))


def test_a_file_or_a_dumb_terminal_gets_plain_lines(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    with os.fdopen(os.dup(screen.end), "w") as stream:
        monkeypatch.setenv("TERM", "xterm")
        assert can_show(stream)
        monkeypatch.setenv("TERM", "dumb")
        assert not can_show(stream)
    with open(os.devnull, "w") as stream:  # noqa: PTH123
        assert not can_show(stream)
