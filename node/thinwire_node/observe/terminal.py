"""The live view on the terminal: log lines scroll, and a few lines below them show the node's state.

Two problems must not reach the node. A stopped terminal (Ctrl-S, or a sleeping laptop at the other end of an ssh)
blocks every process that writes to it, and two writers mix their output. So a single thread writes to the terminal, and
the node passes reports and log lines to it without waiting. The thread draws whole frames: it moves to the start of the
last frame, erases to the end of the screen and writes. That start is unknown after the terminal's width has changed,
because some terminals wrap lines that are too long and others truncate them. The thread then clears the screen and
starts again with the newest log lines.
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

from thinwire_node.observe.view import lines
from thinwire_node.report import Report
from thinwire_proto import limits
from thinwire_proto.clean_text import shown_as_written

LOG_LINES_MAX = 1000
"""Log lines kept while the terminal is stopped. The oldest are dropped first."""
RECENT_LINES = 50
"""Log lines that are written again after the screen was cleared."""
SIZE_WITHOUT_TERMINAL = (80, 24)
CLEAR = "\x1b[H\x1b[2J"
ERASE_BELOW = "\x1b[J"


def can_show(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows


class Terminal(logging.Handler):
    """The live view. It also handles log lines while it is open."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._console = Console(file=stream, highlight=False)
        self._log_lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._report: Report | None = None
        self._legend = ""
        self._recent: deque[str] = deque(maxlen=RECENT_LINES)
        self._drawn: list[str] = []
        self._drawn_width = 0
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._draw_on, name="terminal", daemon=True)
        self.cpu_s = 0.0
        """CPU time of drawing, in seconds."""

    def open(self) -> None:
        self._thread.start()

    def show(self, report: Report) -> None:
        """Draw a report soon. Does not wait."""
        self._report = report
        self._wake.set()

    def set_legend(self, legend: str) -> None:
        """The last line of the view from now on; none if it is empty. Does not wait."""
        if legend != self._legend:
            self._legend = legend
            self._wake.set()

    def emit(self, record: logging.LogRecord) -> None:
        self._log_lines.extend(shown_as_written(self.format(record)).replace("\t", " ").split("\n"))
        self._wake.set()

    def close(self) -> None:
        """Draw the last frame and stop. Waits at most TERMINAL_CLOSE_S for a stopped terminal."""
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
            pass  # the terminal is gone; the node continues without it

    def _draw(self) -> None:
        width, height = self._size()
        # leave one column and one row free, else the terminal starts a new line itself
        legend = [Text(self._legend[: width - 1], style="dim")] if self._legend else []
        view = lines(self._report, width - 1) if self._report is not None else []
        found = [*view[: height - 1 - len(legend)], *legend]
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
        try:
            width, height = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return SIZE_WITHOUT_TERMINAL
        return (width, height) if width > 1 and height > 1 else SIZE_WITHOUT_TERMINAL

    def _coloured(self, found: list[Text]) -> list[str]:
        """The lines with escape sequences. Prints all of them in one call, since each call costs 0.1 ms."""
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(found), no_wrap=True, overflow="ignore", crop=False)
        return captured.get().splitlines() if found else []
