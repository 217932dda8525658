"""Gives memory that is free back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Give the freed memory of this process back to the system. glibc keeps freed memory that lies below memory in use,
    so the process stays as large as its peak. Does nothing with other C libraries."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
