"""The files that nodes fetch: how large their parts are, and which blobs are sound.

Parts are small on a thin line, where a node sees nothing of a part before all of it came. A node gives up a source that
shows it too little for FETCH_SILENT_S, for which parts of 256 KiB need 210 kbit/s. And an answer to its heartbeat waits
behind what is under way.

Each blob is compared with its name before it is first served. Nodes check every blob that they fetch, so without this
check a disk that has damaged one would fail each volunteer, whose node could only say that the coordinator's bytes are
wrong.
"""

from __future__ import annotations

import asyncio
import logging
import stat
import threading
from pathlib import Path

from thinwire_common.logs import tell
from thinwire_proto.blobs import blob_of

log = logging.getLogger("thinwire.coordinator")

FILE_PART_BYTES = 256 << 10
"""The largest."""
FILE_PARTS_MAX = 256
"""Parts of files that are on their way to nodes at the same time."""
LEAST_BYTES = 16 << 10
QUICK_PARTS = 8
"""Parts grow after so many that a line took quickly: any line takes as many bytes at once as its windows hold."""
QUICK_S, SLOW_S = 0.25, 1.0


class PartSizes:
    """The size of the next part of a file for one node, in bytes."""

    def __init__(self) -> None:
        self.bytes = LEAST_BYTES
        self._quick = 0

    def took(self, seconds: float) -> None:
        """The line was ready for another part so long after the last one."""
        self._quick = self._quick + 1 if seconds < QUICK_S else 0
        if self._quick == QUICK_PARTS:
            self.bytes, self._quick = min(2 * self.bytes, FILE_PART_BYTES), 0
        elif seconds > SLOW_S:
            self.bytes = max(self.bytes // 2, LEAST_BYTES)


Version = tuple[int, int]
"""Time of the last change in nanoseconds, and size. A file is read again when they change."""


class ServedBlobs:
    """folder: with blobs, each named by its hash."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # by name; a check outlives the call in which it began, or that of a large blob would never end
        self._checks: dict[str, tuple[Version, asyncio.Task[str]]] = {}
        self._unreadable: set[str] = set()
        """Names that the log has told of, until they can be read again."""

    async def find(self, name: str) -> tuple[Path, str]:
        """A blob's file, and why it cannot be served, in words for nodes; empty if it can."""
        path = self._folder / name
        try:
            found = await asyncio.to_thread(path.stat)
        except FileNotFoundError:
            return path, f"this coordinator does not have the blob {name[:16]}…"
        except OSError as error:
            return path, self._not_now(path, error)
        version = found.st_mtime_ns, found.st_size
        known = self._checks.get(name)
        if known is None or known[0] != version:
            check = self._problem(path, is_file=stat.S_ISREG(found.st_mode))
            known = self._checks[name] = version, asyncio.ensure_future(check)
        return path, await asyncio.shield(known[1])

    async def _problem(self, path: Path, *, is_file: bool) -> str:
        try:
            whole = is_file and await _hash_of(path) == path.name
        except OSError as error:  # it may pass, such as too many open files, so the next call tries again
            if (known := self._checks.get(path.name)) is not None and known[1] is asyncio.current_task():
                del self._checks[path.name]  # of this version: a newer one has a check of its own
            return self._not_now(path, error)
        self._unreadable.discard(path.name)
        if whole:
            return ""
        reason = "its bytes do not match its hash" if is_file else "it is not a file"
        text = f"{path} is damaged: {reason}; restore it from the newest copy that you have, and start again"
        tell(log, logging.ERROR, "coordinator.blob_unusable", text, place=str(path), reason=reason)
        return f"this coordinator's copy of the blob {path.name[:16]}… is damaged; its organizer must restore it"

    def _not_now(self, path: Path, error: OSError) -> str:
        reason = error.strerror or str(error)
        if path.name not in self._unreadable:
            self._unreadable.add(path.name)
            text = f"{path} cannot be read now: {reason}; it is tried again when a node next asks for it"
            tell(log, logging.ERROR, "coordinator.blob_unusable", text, place=str(path), reason=reason)
        return f"this coordinator cannot read its copy of the blob {path.name[:16]}… now: {reason}"


async def _hash_of(path: Path) -> str:
    """The hash of a file. A thread cannot be cancelled: it stops reading once the task that waits for it is."""
    stop = threading.Event()
    try:
        return (await asyncio.to_thread(blob_of, path, stop)).hash
    finally:
        stop.set()
