"""The ready file of a daemon: a JSON file with its addresses, which exists while the daemon is usable.

A program that starts a daemon waits for this file and reads the addresses from it. A killed process leaves its file
behind, so a reader must compare `pid` with the process that it started.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from thinwire_proto.errors import LocalError

READY_FILE = "ready.json"
"""Name of the ready file in a state directory."""


def prepare_ready(path: Path) -> None:
    """Remove the file that a killed process left, and check that this process can write it. Raises LocalError."""
    temporary = _temporary(path)
    try:
        temporary.write_text("", encoding="utf-8")
        temporary.unlink()
        remove_ready(path)
    except OSError as error:
        raise _unwritable(path, error) from None


def write_ready(path: Path, **fields: object) -> None:
    """Write the fields and this process's `pid` atomically. Raises LocalError."""
    temporary = _temporary(path)
    try:
        temporary.write_text(json.dumps({"pid": os.getpid()} | fields, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None


def remove_ready(path: Path) -> None:
    """Remove the file, if there is one. Raises OSError."""
    path.unlink(missing_ok=True)


def read_ready(path: Path, pid: int | None = None) -> dict[str, Any] | None:
    """Read the fields that process `pid` wrote; None while it is not ready. Without `pid`, a killed process may have
    left them."""
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
        return fields if pid in (None, fields["pid"]) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # or a crash of the machine has left it empty
        return None


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _unwritable(path: Path, error: OSError) -> LocalError:
    return LocalError(f"cannot write the ready file {path}: {error.strerror}")
