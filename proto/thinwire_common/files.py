"""Files that are whole, and stay, whatever becomes of the process or of the power."""

from __future__ import annotations

import os
from pathlib import Path


def replace_synced(path: Path, data: bytes) -> None:
    """Replace the file at `path`, for good when this returns. A crash leaves the old file or the new one, whole."""
    rename_synced(_written(path, data), path)


def replace_whole(path: Path, data: bytes) -> None:
    """The same without syncing the folder: a power cut soon after may bring the old file back."""
    _rename_whole(_written(path, data), path)


def rename_synced(passing: Path, path: Path) -> None:
    """Sync a file that was written under a passing name, give it its own name, and sync the folder."""
    _rename_whole(passing, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make what was renamed in a folder, or removed from it, outlast a power cut."""
    if os.name == "nt":  # a folder cannot be opened there; NTFS keeps a journal of names
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _written(path: Path, data: bytes) -> Path:
    passing = path.with_name(path.name + ".part")
    passing.write_bytes(data)
    return passing


def _rename_whole(passing: Path, path: Path) -> None:
    with passing.open("r+b") as file:  # Windows syncs only what may be written
        os.fsync(file.fileno())
    passing.replace(path)
