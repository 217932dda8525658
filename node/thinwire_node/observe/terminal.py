"""The live view: log lines run upwards, and below them a few lines are drawn anew as things change.

Two things would spoil a node: somebody who stops the terminal (Ctrl-S, a laptop that sleeps at the other end of an
ssh) would stop whoever writes to it, and two writers would write into each other. So nobody writes here but one thread,
and the node hands it reports and log lines without ever waiting for it. The thread draws whole frames: up to where the
last one began, erase from there, write. Where that is, nobody knows once the terminal has another width: some break the
lines that are too long by then, others cut them. So after that the screen is begun anew, with the newest log lines.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TextIO

from rich.console import Console
from rich.text import Text

from thinwire_node.observe.report import Report
from thinwire_node.observe.view import lines, printable
from thinwire_proto import limits

LOG_LINES_MAX = 1000
"""Kept while the terminal stands still; then the oldest go."""
RECENT_LINES = 50
"""Of the log: written once more when the screen is begun anew."""
SIZE_WITHOUT_TERMINAL = (80, 24)
CLEAR = "\x1b[H\x1b[2J"
ERASE_BELOW = "\x1b[J"


def can_show(stream: TextIO) -> bool:
    """Whether a view can be drawn there: a terminal that knows how to move its cursor."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows


class Terminal(logging.Handler):
    """Also the handler of log lines while it is open."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._console = Console(file=stream, highlight=False)
        self._log_lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._report: Report | None = None
        self._recent: deque[str] = deque(maxlen=RECENT_LINES)
        self._drawn: list[str] = []
        self._drawn_width = 0
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._draw_on, name="terminal", daemon=True)
        self.cpu_s = 0.0
        """That the drawing has taken."""

    def open(self) -> None:
        self._thread.start()

    def show(self, report: Report) -> None:
        self._report = report
        self._wake.set()

    def emit(self, record: logging.LogRecord) -> None:
        self._log_lines.extend(printable(line) for line in self.format(record).split("\n"))
        self._wake.set()

    def close(self) -> None:
        """The last frame stays. A terminal that stands still is not waited for."""
        super().close()
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(limits.TERMINAL_CLOSE_S)

    def _draw_on(self) -> None:
        try:
            while not self._ended:
                self._wake.wait()
                self._wake.clear()
                self._draw()
                self.cpu_s = time.thread_time()
            self._draw()
        except OSError:
            pass  # the terminal is gone; the node goes on without it

    def _draw(self) -> None:
        width, height = self._size()
        # one column and one row stay free, or the terminal would begin a line of its own
        found = lines(self._report, width - 1)[: height - 1] if self._report is not None else []
        frame = self._coloured(found)
        log_lines = [self._log_lines.popleft() for _ in range(len(self._log_lines))]
        self._recent.extend(log_lines)
        if self._drawn and width != self._drawn_width:
            back = CLEAR
            room = max(0, height - 1 - len(frame))
            log_lines = [*self._recent][max(0, len(self._recent) - room) :]
        elif log_lines or frame != self._drawn:
            back = f"\r\x1b[{len(self._drawn)}A{ERASE_BELOW}" if self._drawn else ""
        else:
            return
        self._drawn, self._drawn_width = frame, width
        self._stream.write(back + "".join(f"{line}\n" for line in (*log_lines, *frame)))
        self._stream.flush()

    def _size(self) -> tuple[int, int]:
        """Columns and rows, as they are now."""
        try:
            width, height = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return SIZE_WITHOUT_TERMINAL
        return (width, height) if width > 1 and height > 1 else SIZE_WITHOUT_TERMINAL

    def _coloured(self, found: list[Text]) -> list[str]:
        """As the terminal takes it; in one go, since each costs a tenth of a millisecond."""
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(found), no_wrap=True, overflow="ignore", crop=False)
        return captured.get().splitlines() if found else []
