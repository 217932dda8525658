"""The keys of the live view, with which an owner pauses a node, lets it go on, and ends it.

Keys arrive one by one only in another mode of the terminal, which belongs to the shell and outlives this program. So
the mode is put back when the node ends, and a small process waits to do it if the node is killed or crashes. Neither
touches a terminal that is no longer in the mode of this program. A node in the background reads nothing: the system
would stop it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

from thinwire_node.cli import owner
from thinwire_node.observe.terminal import Terminal
from thinwire_proto.errors import ThinwireError
from thinwire_proto.limits import KEYBOARD_END_S

log = logging.getLogger("thinwire.node")

LEGEND = "p pause · r resume · s stop after the round · q leave"
KEY_BYTES_MAX = 64
LOOK_EVERY_S = 0.5
"""The interval at which the node looks whether it is in the foreground; on Windows, KEYS_EVERY_S for keys."""
KEYS_EVERY_S = 0.1
MODE_KEEPER = """
ours=$(stty -g <&2)
read -r nothing
[ "$(stty -g <&2)" = "$ours" ] && stty "$1" <&2
"""
"""A program of sh. Its argument is the mode to put back, its input ends with the node, its errors are the terminal."""


class Keyboard(Protocol):
    def open(self) -> bool:
        """Take the keyboard. Returns whether there is one."""

    def read(self) -> bytes | None:
        """Wait for a key, at most for LOOK_EVERY_S. Returns its bytes, none without a key, and None while the node is
        in the background. Raises OSError and EOFError once the keyboard is gone."""

    def close(self) -> None:
        """Give the keyboard back. May be called while another thread reads."""


class PosixKeyboard:
    def __init__(self, stream: TextIO) -> None:
        self._termios: Any = importlib.import_module("termios")  # not on Windows
        self._file = stream.fileno()
        self._changing = threading.Lock()
        self._is_open = False
        self._before: list[Any] = []
        self._ours: list[Any] = []
        self._keeper: subprocess.Popen[bytes] | None = None

    def open(self) -> bool:
        try:
            mode = subprocess.run(["stty", "-g"], stdin=self._file, capture_output=True, check=True, text=True).stdout
            self._before = self._termios.tcgetattr(self._file)
            self._is_open = True
            if self._is_in_front():
                self._set(self._termios.TCSAFLUSH)  # what was typed before the legend was there is no order
            self._keeper = subprocess.Popen(
                ["sh", "-c", MODE_KEEPER, "sh", mode.strip()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._file,
                start_new_session=True,  # the terminal's signals do not reach it
            )
        except (OSError, subprocess.SubprocessError, self._termios.error) as error:
            log.debug("no keys: %s", error)
            self.close()
            return False
        return True

    def read(self) -> bytes | None:
        if not self._is_in_front():
            select.select([], [], [], LOOK_EVERY_S)
            return None
        try:
            with self._changing:
                if self._is_open and self._termios.tcgetattr(self._file) != self._ours:  # it was in the background
                    self._set(self._termios.TCSADRAIN)
        except self._termios.error as error:
            raise OSError(*error.args) from None
        if not select.select([self._file], [], [], LOOK_EVERY_S)[0] or not self._is_open or not self._is_in_front():
            return b""
        found = os.read(self._file, KEY_BYTES_MAX)
        if not found:
            raise EOFError
        return found

    def close(self) -> None:
        with self._changing:
            self._is_open = False
            with contextlib.suppress(OSError, self._termios.error):  # the terminal is gone
                if self._ours and self._termios.tcgetattr(self._file) == self._ours:
                    with _not_stopped():
                        self._termios.tcsetattr(self._file, self._termios.TCSADRAIN, self._before)
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(KEYBOARD_END_S)

    def _is_in_front(self) -> bool:
        return os.tcgetpgrp(self._file) == os.getpgrp()

    def _set(self, when: int) -> None:
        """Keys come one by one and are not shown; Ctrl-C remains a signal."""
        mode = self._termios.tcgetattr(self._file)
        mode[3] &= ~(self._termios.ICANON | self._termios.ECHO)
        mode[6][self._termios.VMIN], mode[6][self._termios.VTIME] = 1, 0
        with _not_stopped():
            self._termios.tcsetattr(self._file, when, mode)
        self._ours = self._termios.tcgetattr(self._file)


@contextlib.contextmanager
def _not_stopped() -> Iterator[None]:
    """The system stops a program in the background that changes the terminal, unless it blocks the signal."""
    signal: Any = importlib.import_module("signal")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WindowsKeyboard:
    """Windows' console gives keys one by one without a change of its mode."""

    def __init__(self) -> None:
        self._msvcrt: Any = importlib.import_module("msvcrt")
        self._ended = threading.Event()

    def open(self) -> bool:
        while self._msvcrt.kbhit():  # what was typed before the legend was there is no order
            self._msvcrt.getwch()
        return True

    def read(self) -> bytes:
        if not self._msvcrt.kbhit():
            self._ended.wait(KEYS_EVERY_S)
            return b""
        found = str(self._msvcrt.getwch())
        if found in ("\x00", "\xe0"):  # a key with two codes, such as an arrow
            return (found + str(self._msvcrt.getwch())).encode()
        return found.encode()

    def close(self) -> None:
        self._ended.set()


def keyboard_of(stream: TextIO | None) -> Keyboard | None:
    """The keyboard at the other end of an input; None if there is none."""
    if stream is None or not stream.isatty():
        return None
    return WindowsKeyboard() if sys.platform == "win32" else PosixKeyboard(stream)


class Keys:
    """Gives the orders of the commands to the node in a state directory, by keys, if both a live view and a keyboard
    are there."""

    def __init__(self, state_dir: Path, terminal: Terminal | None) -> None:
        self._state_dir = state_dir
        self._terminal = terminal
        self._ended = threading.Event()
        self._keyboard: Keyboard | None = None
        self._reading: threading.Thread | None = None

    def open(self) -> None:
        """Take the keyboard. The node follows orders."""
        if self._terminal is None or (keyboard := keyboard_of(sys.stdin)) is None or not keyboard.open():
            return
        self._keyboard = keyboard
        self._reading = threading.Thread(
            target=self._obey_on, args=(keyboard, self._terminal), name="keys", daemon=True
        )
        self._reading.start()

    def close(self) -> None:
        self._ended.set()
        if self._keyboard is not None:
            self._keyboard.close()
        if self._reading is not None:
            self._reading.join(KEYBOARD_END_S)
        if self._terminal is not None:
            self._terminal.set_legend("")

    def _obey_on(self, keyboard: Keyboard, terminal: Terminal) -> None:
        folder = self._state_dir
        orders: dict[bytes, Callable[[], str]] = {
            b"p": lambda: owner.pause(folder, []),
            b"r": lambda: owner.resume(folder),
            b"s": lambda: owner.stop(folder, after_round=True),
            b"q": lambda: owner.stop(folder, after_round=False),
        }
        while not self._ended.is_set():
            try:
                key = keyboard.read()
                terminal.set_legend("" if key is None else LEGEND)
            except (OSError, EOFError) as error:  # the terminal is gone
                log.debug("no more keys: %s", error)
                return
            if key is None or self._ended.is_set():
                continue
            # several bytes at once are a key such as an arrow, or a text that was pasted
            if (order := orders.get(key)) is not None:
                try:
                    log.info("%s", order())
                except ThinwireError as error:
                    log.warning("%s", error)
