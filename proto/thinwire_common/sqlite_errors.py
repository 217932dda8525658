"""Says in words what an error of SQLite means, and what to do about it.

The texts of SQLite tell the errors apart: `sqlite_errorcode` is not on every Python that thinwire runs on.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from thinwire_proto.errors import MEND_DISK, MEND_FILES, MEND_OWNER

LOCKED = ("database is locked", "database table is locked", "locking protocol")
"""SQLITE_BUSY, SQLITE_LOCKED and SQLITE_PROTOCOL."""
REFUSED = ("readonly", "access permission denied", "authorization denied")
UNOPENED = "unable to open database file"
FAILS = "disk I/O error"


def is_locked(error: Exception) -> bool:
    """Whether another program, or another connection, holds a lock for longer than was waited for it."""
    return any(text in str(error) for text in LOCKED)


def is_refused(error: Exception) -> bool:
    """Whether this user may not write to the file."""
    return isinstance(error, PermissionError) or any(text in str(error) for text in REFUSED)


def mend(path: Path, error: Exception) -> str:
    """Say what to do about an error with a file."""
    if is_locked(error):
        show = f"fuser -v {shlex.quote(str(path))}"
        return f"another program holds its lock: end the sqlite3 shell, backup or copy that uses it ({show} lists it)"
    if is_refused(error):
        return MEND_OWNER
    if UNOPENED in str(error):
        return f"{MEND_OWNER} {MEND_FILES}"
    if FAILS in str(error):
        return f"{MEND_DISK}; on a network share, put it in a folder of a disk of this machine instead"
    return MEND_DISK
