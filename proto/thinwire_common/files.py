"""Writes files atomically and durably, so that they survive a crash of the process or a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

NOT_SYNCED = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of file systems that sync files, but no folders: some FUSE, SMB and shared folders of virtual machines."""


def replace_synced(path: Path, data: bytes, *, private: bool = False, of_folder: bool = False) -> None:
    """Replace the file at `path` durably. A crash leaves either the old file or the new one, complete.

    private: only the file's owner can read it. of_folder: it belongs to the owner of its folder, also if root writes
    it, whose umask may let nobody else read it."""
    rename_synced(_written(path, data, 0o600 if private else 0o666, of_folder=of_folder), path)


def replace_whole(path: Path, data: bytes) -> None:
    """Like `replace_synced`, without syncing the folder: a power cut soon after may bring the old file back."""
    _rename_whole(_written(path, data), path)


def rename_synced(temporary: Path, path: Path) -> None:
    """Sync a temporary file, rename it to `path`, and sync the folder."""
    _rename_whole(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and deletions in a folder durable."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder; NTFS keeps a journal of names
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NOT_SYNCED:
            raise
    finally:
        os.close(handle)


def _written(path: Path, data: bytes, mode: int = 0o666, *, of_folder: bool = False) -> Path:
    temporary, flags = path.with_name(path.name + ".part"), os.O_TRUNC
    gives = of_folder and hasattr(os, "geteuid") and os.geteuid() == 0
    if mode != 0o666 or gives:
        temporary.unlink(missing_ok=True)  # it may be readable by others
    if gives:
        flags = os.O_EXCL  # the folder's owner may have put a link there, to a file of root
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | flags, mode), "wb") as file:
        if gives:
            folder = path.parent.stat()
            with contextlib.suppress(OSError):  # a container's root may not
                os.fchown(file.fileno(), folder.st_uid, folder.st_gid)
        file.write(data)
    return temporary


def _rename_whole(temporary: Path, path: Path) -> None:
    # Windows can sync only files that are open for writing; elsewhere the file may be read-only, as one of an archive
    with temporary.open("r+b" if os.access(temporary, os.W_OK) else "rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
