"""A terminal as a person sees it: a pty and an emulator that draws its output."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import pyte

PATIENCE_S = 60.0
ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Screen:
    """A terminal. Output to the open file `end` appears on it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._ours, self.end = pty.openpty()
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Run a program on this terminal. Ctrl-C reaches it."""
        return subprocess.Popen(
            [sys.executable, "-c", ON_ITS_TERMINAL, *command],
            stdin=self.end,
            stdout=self.end,
            stderr=self.end,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color"},
        )

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def lines(self) -> list[str]:
        """The current lines, without trailing empty ones."""
        while select.select([self._ours], [], [], 0)[0]:
            found = os.read(self._ours, 65536)
            self.written += found
            self._stream.feed(found)
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().split("\n")

    def shows(self, holds: Callable[[list[str]], object]) -> list[str]:
        """Wait until a condition on the lines holds. Returns the lines."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(found := self.lines()):
            assert time.monotonic() < deadline, "\n".join(found)
            select.select([self._ours], [], [], 0.2)
        return found

    @property
    def cursor(self) -> tuple[int, int]:
        """Column and row."""
        return self._screen.cursor.x, self._screen.cursor.y

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.end)
