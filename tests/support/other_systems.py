"""Runs `thinwire-node` as on Windows, as far as Linux can: `python other_systems.py ROOM ARGUMENTS…`.

What only POSIX has is hidden. Below the folder ROOM, an audit hook applies Windows' rules: a file that is open or
mapped in this process cannot be renamed, replaced or deleted; names are compared without case; some are reserved;
folders cannot be opened; only a file that is open for writing can be synced. What breaks a rule raises Windows' error,
and is written to ROOM/broken-rules, because a program may catch it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

HIDDEN_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "uvloop")
HIDDEN_OF_OS = (
    *("fork", "forkpty", "getuid", "geteuid", "getgid", "sysconf", "getloadavg", "sched_getaffinity", "O_DIRECTORY"),
    *("fchmod", "chown", "setsid", "killpg", "nice", "mkfifo"),
)
HIDDEN_SIGNALS = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "SIGPIPE")
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[<>:\"|?*\x00-\x1f].*|.*[. ]", re.IGNORECASE)
FILES, MAPS = "/proc/self/fd", Path("/proc/self/maps")
ACCESS_MODE = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
REPORT = "broken-rules"


class Rules:
    """Windows' rules for files below a folder."""

    def __init__(self, room: str) -> None:
        self._room = os.path.realpath(room) + os.sep
        self._report = os.open(os.path.join(room, REPORT), os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # noqa: PTH118
        self._fsync = os.fsync
        self._busy = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: `open`, `os.rename`, `os.remove` and `os.mkdir` before they happen."""
        if self._busy or event not in ("open", "os.rename", "os.remove", "os.mkdir"):
            return
        self._busy = True
        try:
            if event == "open":
                self._open(arguments[0], int(arguments[2] or 0))
            elif event == "os.rename":
                self._check_name(arguments[1])
                self._check_closed(arguments[0], event)
                self._check_closed(arguments[1], event)
            elif event == "os.remove":
                self._check_closed(arguments[0], event)
            else:
                self._check_name(arguments[0])
        finally:
            self._busy = False

    def fsync(self, file: int) -> None:
        flags = Path(f"/proc/self/fdinfo/{file}").read_text().split("flags:")[1].split()[0]
        path = Path(f"{FILES}/{file}").readlink()
        if self._is_inside(path) and int(flags, 8) & ACCESS_MODE == os.O_RDONLY:
            self._break(f"fsync of a file that is open for reading: {path}", errno.EBADF)
        self._fsync(file)

    def _is_inside(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.realpath(path).startswith(self._room)

    def _open(self, path: object, flags: int) -> None:
        if not self._is_inside(path):
            return
        if os.path.isdir(os.fsdecode(path)):  # type: ignore[arg-type]  # noqa: PTH112
            self._break(f"a folder is opened: {path}", errno.EACCES)
        if flags & os.O_CREAT:
            self._check_name(path)

    def _check_name(self, path: object) -> None:
        if not self._is_inside(path):
            return
        folder, name = os.path.split(os.fsdecode(path))  # type: ignore[arg-type]
        if RESERVED.fullmatch(name):
            self._break(f"a reserved name: {path}", errno.EINVAL)
        for other in os.listdir(folder) if os.path.isdir(folder) else ():  # noqa: PTH112, PTH208
            if other != name and other.lower() == name.lower():
                self._break(f"{path} is {other}", errno.EEXIST)

    def _check_closed(self, path: object, event: str) -> None:
        if not self._is_inside(path):
            return
        real = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]
        if real.endswith("lock"):  # filelock's own, which has another way on Windows
            return
        for number in os.listdir(FILES):  # noqa: PTH208
            try:
                if str(Path(f"{FILES}/{number}").readlink()) == real:
                    self._break(f"{event} of a file that is open: {path}", errno.EACCES)
            except FileNotFoundError:  # the one that lists them
                continue
        if any(line.endswith(real) for line in MAPS.read_text().splitlines()):
            self._break(f"{event} of a file that is mapped: {path}", errno.EACCES)

    def _break(self, text: str, number: int) -> NoReturn:
        os.write(self._report, f"{text}\n".encode())
        raise OSError(number, os.strerror(number), text)


def no_signal_handler(*arguments: object) -> NoReturn:
    raise NotImplementedError


def hide() -> None:
    """Hide what Windows lacks from modules that are imported from now on."""
    for name in HIDDEN_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in HIDDEN_OF_OS:
        delattr(os, name)
    for name in HIDDEN_SIGNALS:
        delattr(signal, name)
    del select.PIPE_BUF
    setattr(asyncio.SelectorEventLoop, "add_signal_handler", no_signal_handler)  # noqa: B010 - mypy forbids to assign it


if __name__ == "__main__":
    import shutil  # noqa: F401 - what the standard library has imported of POSIX on this system stays as it is
    import subprocess  # noqa: F401
    import tempfile  # noqa: F401

    import psutil  # noqa: F401 - it has a module of its own for each system

    hide()
    rules = Rules(sys.argv[1])
    sys.addaudithook(rules.hear)
    setattr(os, "fsync", rules.fsync)  # noqa: B010 - mypy forbids to assign it
    sys.argv = ["thinwire-node", *sys.argv[2:]]

    from thinwire_node.__main__ import main

    main()
