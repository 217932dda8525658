"""Finds files of a frozen base that this machine has already, so that it fetches none twice: in the cache of the
Hugging Face Hub, or with another node of this machine.

Nodes tell each other in a folder:

    HASH        the path where a node has a file, or fetches it to (`HASH.part` beside it)
    HASH.lock   locked by the node that fetches the file, while the others wait

Nothing in it is trusted: a file counts only after its hash was checked. It holds paths and no data, so what is left
of a node that is gone takes no room.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from thinwire_common.hub_cache import cached_files, user_cache
from thinwire_proto.blobs import Blob

PATH_BYTES_MAX = 4096


def users_folder() -> Path | None:
    """Where the nodes of this user tell each other; None: this user has no home folder."""
    try:
        return user_cache() / "thinwire" / "bases"
    except RuntimeError:
        return None


def is_shared(path: Path) -> bool:
    """Whether a file is somewhere else too, so that it takes no room of its own. Raises OSError."""
    return path.is_symlink() or path.lstat().st_nlink > 1


class BaseFilesHere:
    """The files of bases on this machine. folder: where its nodes tell each other; None: nobody is told or asked."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, blob: Blob, name: str) -> Iterator[Path]:
        """Files outside of the node's own that may be the blob. name: in the base's folder; empty: not known."""
        told = self.told(blob)
        for path in ([told] if told else []) + list(cached_files(blob.hash, name)):
            try:
                if path.is_file() and path.stat().st_size == blob.size:
                    yield path.resolve()
            except OSError:
                continue

    def bytes_of_others(self, names: Mapping[Blob, str], folder: Path) -> int:
        """Bytes of these files that take no room of the node, whose files are in `folder`: others have them here."""
        total = 0
        for blob, name in names.items():
            try:
                found = is_shared(folder / blob.hash)
            except OSError:
                found = next(self.find(blob, name), None) is not None
            total += blob.size if found else 0
        return total

    def told(self, blob: Blob) -> Path | None:
        """Where another node has the blob, or fetches it to."""
        if self._folder is None:
            return None
        try:
            with (self._folder / blob.hash).open("rb") as file:
                return Path(os.fsdecode(file.read(PATH_BYTES_MAX)))
        except (OSError, ValueError):
            return None

    def tell(self, blob: Blob, path: Path) -> None:
        """Tell the others where this node has the blob, or fetches it to."""
        if self._folder is None:
            return
        try:
            (self._folder / blob.hash).write_bytes(os.fsencode(path.absolute()))
        except OSError:
            return  # then each fetches for itself

    def turn(self, blob: Blob) -> FileLock | None:
        """The lock for fetching a blob, taken; None: no lock can be had here. Raises BlockingIOError while another
        node has it."""
        if self._folder is None:
            return None
        lock = FileLock(self._folder / f"{blob.hash}.lock")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            raise BlockingIOError(f"{lock.lock_file} is locked") from None
        except (OSError, NotImplementedError):
            return None
        return lock
