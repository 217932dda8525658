"""The blobs that nodes fetch from the coordinator. Each is compared with its name before it is first served.

Nodes check every blob that they fetch. Without this check, a disk that has damaged one would fail each volunteer, whose
node could only say that the coordinator's bytes are wrong.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from thinwire_common.logs import tell
from thinwire_proto.blobs import blob_of

log = logging.getLogger("thinwire.coordinator")

Version = tuple[int, int]
"""Time of the last change in nanoseconds, and size. A file is read again when they change."""


class ServedBlobs:
    """folder: with blobs, each named by its hash."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # by name; a check outlives the call in which it began, or that of a large blob would never end
        self._checks: dict[str, tuple[Version, asyncio.Task[str]]] = {}

    async def find(self, name: str) -> tuple[Path, str]:
        """A blob's file, and why it cannot be served, in words for nodes; empty if it can."""
        path = self._folder / name
        try:
            found = await asyncio.to_thread(path.stat)
        except OSError:
            return path, f"this coordinator does not have the blob {name[:16]}…"
        version = found.st_mtime_ns, found.st_size
        known = self._checks.get(name)
        if known is None or known[0] != version:
            known = self._checks[name] = version, asyncio.ensure_future(self._problem(path))
        return path, await asyncio.shield(known[1])

    async def _problem(self, path: Path) -> str:
        try:
            found = await asyncio.to_thread(blob_of, path)
            reason = "" if found.hash == path.name else "its bytes do not match its hash"
        except OSError as error:
            reason = f"it cannot be read: {error.strerror}"
        if not reason:
            return ""
        text = f"{path} is damaged: {reason}; restore it from the newest copy that you have, and start again"
        tell(log, logging.ERROR, "coordinator.blob_damaged", text, place=str(path), reason=reason)
        return f"this coordinator's copy of the blob {path.name[:16]}… is damaged; its organizer must restore it"
