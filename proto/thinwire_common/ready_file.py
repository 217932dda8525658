"""The ready file of a daemon: JSON that says where it can be reached, there while the daemon can be used.

A program that starts a daemon waits for this file, and reads the addresses from it. A process that is killed leaves its
file behind, so a reader compares `pid` with the process that it started.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from thinwire_proto.errors import LocalError

READY_FILE = "ready.json"
"""Of the file in a state directory."""


def write_ready(path: Path, **fields: object) -> None:
    """Write the fields and this process's `pid`, whole or not at all. Raises LocalError."""
    passing = path.with_name(f"{path.name}.part")
    try:
        passing.write_text(json.dumps({"pid": os.getpid()} | fields, indent=2) + "\n", encoding="utf-8")
        passing.replace(path)
    except OSError as error:
        raise LocalError(f"{path}: the ready file cannot be written: {error.strerror}") from None


def remove_ready(path: Path) -> None:
    """The file of this process, or of one before it that was killed. Raises OSError."""
    path.unlink(missing_ok=True)


def read_ready(path: Path, pid: int) -> dict[str, Any] | None:
    """What a process wrote; None while it is not ready."""
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return fields if fields["pid"] == pid else None
