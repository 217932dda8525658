"""Blobs: files that are named by the SHA-256 of their bytes, such as a shard of training data or the weights of a base.

Anyone may hand on a blob, because whoever receives it checks its hash. A contract, or a file that a contract names by
its hash, lists the blobs of a run.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import NamedTuple, Protocol

from thinwire_proto.errors import ThinwireError

HASH_PATTERN = "^[0-9a-f]{64}$"
CHUNK_BYTES = 1 << 20


class Blob(NamedTuple):
    """The name of a blob: its SHA-256 as 64 hexadecimal digits, and its size in bytes."""

    hash: str
    size: int


class BlobMissing(ThinwireError):
    """A blob is needed that is not on this machine."""

    def __init__(self, blob: Blob) -> None:
        super().__init__(f"blob {blob.hash[:16]}… ({blob.size:,} bytes) is not on this machine")
        self.blob = blob


class HashingStopped(ThinwireError):
    """A file was not read to its end, because this process ends."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} was not read to its end, because the process ends")


class Blobs(Protocol):
    """The blobs on this machine. Every blob that it has was checked against its hash when it arrived."""

    def path(self, blob: Blob) -> Path:
        """The file with the blob's bytes. Raises BlobMissing."""


class NoBlobs:
    """`Blobs` without any blob, for kinds that need none."""

    def path(self, blob: Blob) -> Path:
        raise BlobMissing(blob)


class BlobFolder:
    """`Blobs` in a folder, each in a file named by its hash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, blob: Blob) -> Path:
        path = self.folder / blob.hash
        if not path.is_file():
            raise BlobMissing(blob)
        return path


def blob_of(path: Path, stop: threading.Event | None = None) -> Blob:
    """The name of a file's contents. Reads the whole file. Raises HashingStopped once `stop` is set."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            if stop is not None and stop.is_set():
                raise HashingStopped(path)
    return Blob(digest.hexdigest(), size)
