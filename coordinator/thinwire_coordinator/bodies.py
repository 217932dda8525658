"""Bodies of updates: immutable files named by their hash, through fsspec (a local folder by default).

A body is written under a passing name, synced, renamed, and its folder synced: a file that has its name is whole.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from thinwire_proto.errors import LedgerError


class Bodies:
    """`url`: a folder, or any address that fsspec opens. Raises OSError where the disk does."""

    def __init__(self, url: str) -> None:
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._fs.makedirs(self._root, exist_ok=True)

    def _path(self, body_hash: bytes) -> str:
        return f"{self._root}/{body_hash.hex()}"

    def put(self, body: bytes) -> bytes:
        """Store a body for good and return its hash."""
        body_hash = hashlib.sha256(body).digest()
        path = self._path(body_hash)
        if isinstance(self._fs, LocalFileSystem):
            replace_synced(Path(path), body)
        else:
            self._fs.pipe_file(path, body)  # object stores show a file when it is whole, and not before
        return body_hash

    def get(self, body_hash: bytes, size: int) -> bytes:
        """Raises LedgerError if the body is not there, or is not what its name says."""
        try:
            body = bytes(self._fs.cat_file(self._path(body_hash), start=0, end=size + 1))
        except FileNotFoundError:
            raise LedgerError(f"body {body_hash.hex()} is missing") from None
        if hashlib.sha256(body).digest() != body_hash:
            raise LedgerError(f"body {body_hash.hex()} does not have the hash that its name says")
        return body


def replace_synced(path: Path, data: bytes) -> None:
    """Put `data` in place of whatever is at `path`: after a crash there is the old file or the new one, whole."""
    passing = path.with_name(path.name + ".part")
    passing.write_bytes(data)
    rename_synced(passing, path)


def rename_synced(passing: Path, path: Path) -> None:
    """Sync a file that was written under a passing name, give it its own, and sync the folder."""
    with passing.open("rb") as file:
        os.fsync(file.fileno())
    passing.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
