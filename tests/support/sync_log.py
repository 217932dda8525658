"""Records renames, removals and syncs of files in order. The calls are real.

A power cut may undo or reorder every operation that no later sync covers."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_logs: list[list[str]] = []
"""The open logs. One audit hook serves all of them, because an audit hook cannot be removed."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _logs or event not in ("os.rename", "os.remove"):
        return
    name = Path(arguments[1] if event == "os.rename" else arguments[0]).name
    for log in _logs:
        log.append(f"{event.removeprefix('os.')} {name}")


sys.addaudithook(_note)


@contextmanager
def sync_log(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list that grows with "rename NEW-NAME", "remove NAME" and "sync NAME". A folder's name ends with a
    slash."""
    log: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        log.append(f"sync {path.name}{'/' * stat.S_ISDIR(os.fstat(handle).st_mode)}")

    patch.setattr(os, "fsync", noted)
    _logs.append(log)
    try:
        yield log
    finally:
        _logs.remove(log)
        patch.undo()
