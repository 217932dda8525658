"""The blobs on a node's disk: shards of data and weights of a base, each in a file named by its hash.

    HASH        a whole blob, whose hash was checked when it arrived
    HASH.part   a blob that is partly downloaded; a later download continues it

The cache is bounded. When a blob needs room, those that were not used for longest are deleted, except those that
somebody wants. Before somebody wants some, `room_for` says how many have room beside what others want. The time of last
use is the file's modification time, so it survives a restart. A file that was damaged meanwhile is noticed: its hash is
checked again at its first use in each process, and its size at every use.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

from thinwire_common.files import rename_synced
from thinwire_proto.blobs import HASH_PATTERN, Blob, BlobMissing, Blobs, blob_of
from thinwire_proto.errors import PayloadError

CACHE_BYTES = 4 << 30
"""The bound, unless the volunteer gives another one."""
BLOBS = "blobs"
"""The folder of a cache in a state directory."""
PART = ".part"
NAME = re.compile(HASH_PATTERN[1:-1] + r"(\.part)?")


class BlobCache(Blobs):
    """See the module. Every method may be called from any thread. What reads a whole file raises HashingStopped after
    `close`."""

    def __init__(self, folder: Path, bytes_max: int = CACHE_BYTES) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.file_bytes_max: int | None = None
        """The largest blob that fits onto the disk; None: not known."""
        self._checked: set[Blob] = set()
        self._wanted: dict[str, frozenset[Blob]] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop what reads whole files, since a thread that hashes a large base keeps the process from ending."""
        self._closed.set()

    def bound(self, bytes_max: int, file_bytes_max: int) -> None:
        """Set the bounds, once the needs of the run are known."""
        self.bytes_max, self.file_bytes_max = bytes_max, file_bytes_max

    def path(self, blob: Blob) -> Path:
        """The file with the blob's bytes. Reads all of it at the first use in this process. Raises BlobMissing."""
        path = self.folder / blob.hash
        with self._lock:
            try:
                whole = path.stat().st_size == blob.size
                if whole and blob in self._checked:
                    return path
            except OSError:
                raise BlobMissing(blob) from None
        if not whole or blob_of(path, self._closed) != blob:
            self.drop(blob)
            raise BlobMissing(blob)
        self.used([blob])
        self._checked.add(blob)
        return path

    def has(self, blob: Blob) -> bool:
        """Whether the blob is here. Reads all of it at the first use in this process."""
        try:
            self.path(blob)
        except BlobMissing:
            return False
        return True

    def part(self, blob: Blob) -> Path:
        """The file for the part of a blob that has arrived. Makes room for the rest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / (blob.hash + PART)
        self.make_room(blob.size - (path.stat().st_size if path.exists() else 0))
        return path

    def lacking_bytes(self, blob: Blob) -> int:
        """Bytes that the disk lacks for the rest of a blob, after as many files were deleted as that takes. 0 or less:
        it fits. Requires the folder, which `part` makes."""
        part = self.folder / (blob.hash + PART)
        missing = blob.size - (part.stat().st_size if part.exists() else 0)
        lacking = missing - shutil.disk_usage(self.folder).free
        if lacking > 0 and self.make_room(self.bytes_max - self.size + lacking):
            lacking = missing - shutil.disk_usage(self.folder).free
        return lacking

    def take_in(self, blob: Blob) -> None:
        """Give a downloaded file its name. Raises PayloadError, and deletes it, if it is not the blob."""
        part = self.folder / (blob.hash + PART)
        found = blob_of(part, self._closed)
        if found != blob:
            part.unlink()
            raise PayloadError(f"{found.size:,} bytes came with the hash {found.hash[:16]}…")
        with self._lock:
            rename_synced(part, self.folder / blob.hash)
            self._checked.add(blob)

    def take_in_left(self, blob: Blob) -> bool:
        """Take in a download that was complete when a process ended, but not yet checked. Returns whether there was
        one; if it is not the blob, it is deleted."""
        try:
            if (self.folder / (blob.hash + PART)).stat().st_size < blob.size:
                return False
            self.take_in(blob)
        except (FileNotFoundError, PayloadError):
            return False
        return True

    def adopt(self, blob: Blob, path: Path) -> bool:
        """Take in a file of this machine as it is: linked, so that it takes no room. Returns whether it is the blob."""
        target = self.folder / blob.hash
        if path.resolve() == target.resolve():
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            try:
                os.link(path, target)
            except OSError:  # on another disk, or of another user
                target.symlink_to(path)
        except OSError:
            return False
        return self.has(blob)

    def drop(self, blob: Blob) -> None:
        with self._lock:
            self._checked.discard(blob)
            (self.folder / blob.hash).unlink(missing_ok=True)

    def want(self, wanted_by: str, blobs: Iterable[Blob]) -> None:
        """Protect these blobs from deletion, and no longer those that `wanted_by` named before, which were used until
        now."""
        with self._lock:
            before, self._wanted[wanted_by] = self._wanted.get(wanted_by, frozenset()), frozenset(blobs)
            self.used(before - self._wanted[wanted_by])

    def used(self, blobs: Iterable[Blob]) -> None:
        for blob in blobs:
            try:
                os.utime(self.folder / blob.hash)
            except OSError:
                continue

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self._files())

    def make_room(self, size: int) -> bool:
        """Delete files, until `size` more bytes fit, or only wanted ones are left. Returns whether it deleted any."""
        with self._lock:
            files = self._files()
            excess = sum(one[1] for one in files) + size - self.bytes_max
            wanted = {blob.hash for blob in self._wanted_beside("")}
            deleted = False
            for _, bytes_, path in files:
                if excess <= 0:
                    break
                if path.name.removesuffix(PART) not in wanted:
                    path.unlink(missing_ok=True)
                    self._checked = {blob for blob in self._checked if blob.hash != path.name}
                    excess -= bytes_
                    deleted = True
            return deleted

    def room_for(self, blobs: Iterable[Blob], wanted_by: str) -> int:
        """The number of these blobs, from the first on, that fit into the bound together, beside what others than
        `wanted_by` want."""
        others = self._wanted_beside(wanted_by)
        total, count = sum(blob.size for blob in others), 0
        for blob in blobs:
            total += 0 if blob in others else blob.size
            if total > self.bytes_max:
                break
            count += 1
        return count

    def most_bytes(self, blob: Blob) -> int | None:
        """The largest size of this blob that fits onto the disk beside what the model needs; None: not known."""
        if self.file_bytes_max is None:
            return None
        return self.file_bytes_max - sum(other.size for other in self._wanted.get("task", ()) if other != blob)

    def _wanted_beside(self, wanted_by: str) -> frozenset[Blob]:
        """What all others want."""
        with self._lock:
            return frozenset().union(*(blobs for others, blobs in self._wanted.items() if others != wanted_by))

    def _files(self) -> list[tuple[float, int, Path]]:
        """All files: time of last use, size and path, those that were not used for longest first."""
        found = []
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if not NAME.fullmatch(path.name):
                    continue  # somebody else's
                try:
                    about = path.stat()
                except OSError:
                    continue
                found.append((about.st_mtime, about.st_size, path))
        return sorted(found)
