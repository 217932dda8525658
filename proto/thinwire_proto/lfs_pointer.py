"""Recognizes a pointer of Git LFS: a small text that stands in a clone for a file that was not fetched."""

from __future__ import annotations

import re

POINTER_BYTES_MAX = 1024
"""A longer file is no pointer, by the specification of Git LFS."""
POINTER = re.compile(
    rb"version https?://[\w./-]+/spec/v1\r?\n(?:ext-[a-z0-9.-]+ [^\r\n]+\r?\n)*?"
    rb"oid sha256:[0-9a-f]{64}\r?\nsize [0-9]+\r?\n?\Z"
)
IS_LFS_POINTER = "is a pointer of Git LFS, not the file itself; fetch the files with `git lfs pull`"


def is_lfs_pointer(begin: bytes) -> bool:
    """Whether a file is a pointer of Git LFS. begin: its first POINTER_BYTES_MAX bytes, or more."""
    return len(begin) < POINTER_BYTES_MAX and POINTER.match(begin) is not None
