"""Stores the bodies of updates: immutable files named by their hash, at any address that fsspec can open.

The default is a local folder. There, a body is written under a temporary name, synced and renamed, and the folder is
synced, so a file under its final name is complete. Object stores show a file only when it is complete.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from thinwire_common.files import replace_synced
from thinwire_proto.errors import ConfigError, Damaged

NAME = re.compile(r"[0-9a-f]{64}")
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""The extra of thinwire that installs the fsspec backend of a protocol."""


class StoreFails(OSError):
    """A store that is no folder of this machine cannot be used. The text has its address."""


class Bodies:
    """The bodies at `url`, which is a folder or any address that fsspec can open.

    Raises ConfigError if the address cannot be opened on this machine, OSError if the disk fails, and StoreFails if
    another store does.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._root = open_location(url)
        self.location = location_of(url)
        if url.partition("://")[0] not in EXTRAS:  # an object store has no folders, and a bucket is not made by mistake
            with self._failing():
                self._fs.makedirs(self._root, exist_ok=True)

    @property
    def folder(self) -> Path | None:
        """The local folder of the bodies; None if they are in a store."""
        return Path(self._root) if isinstance(self._fs, LocalFileSystem) else None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def put(self, body: bytes) -> bytes:
        """Store a body durably and return its hash."""
        body_hash = hashlib.sha256(body).digest()
        path = self._path(body_hash.hex())
        if self.folder:
            replace_synced(Path(path), body)
        else:
            with self._failing():
                self._fs.pipe_file(path, body)
        return body_hash

    def get(self, body_hash: bytes, size: int) -> bytes:
        """Read a body of `size` bytes. Raises Damaged if it is missing or does not match its hash."""
        name = body_hash.hex()
        try:
            with self._failing(may_be_missing=True):
                body = bytes(self._fs.cat_file(self._path(name), start=0, end=size + 1))
        except FileNotFoundError:
            raise Damaged(f"body {name} is missing", restore="it") from None
        if hashlib.sha256(body).digest() != body_hash:
            torn = f": it has {len(body)} of {size} bytes" if len(body) < size else ""
            raise Damaged(f"body {name} does not match its hash{torn}", restore="it")
        return body

    def names(self) -> set[str]:
        return {name for name in self.everything() if NAME.fullmatch(name)}

    def everything(self) -> list[str]:
        """The names of all files at the address, bodies or not."""
        try:
            with self._failing(may_be_missing=True):
                self._fs.invalidate_cache()
                paths = [path.rstrip("/") for path in self._fs.ls(self._root, detail=False)]
                return [path.rpartition("/")[2] for path in paths if path != self._root]  # which a console has created
        except FileNotFoundError:  # an object store has no empty folders
            return []

    def check_writable(self) -> None:
        """Raises OSError if the address is not writable. Called at start, before a round depends on it."""
        with self._failing():
            self._fs.pipe_file(self._path("writable.part"), b"")
        self.remove(["writable.part"])

    def remove(self, names: Iterable[str]) -> None:
        """Delete files in the given order; missing ones are ignored."""
        for name in names:
            with self._failing(may_be_missing=True), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def remove_temporary(self) -> None:
        """Delete the temporary files that a crash left behind."""
        self.remove(name for name in self.everything() if name.endswith(".part") and NAME.match(name))

    @contextmanager
    def _failing(self, *, may_be_missing: bool = False) -> Iterator[None]:
        """Turn the errors of a store into StoreFails with the address; each store has its own exception classes.

        may_be_missing: FileNotFoundError tells of one file. Otherwise it tells that there is no such bucket."""
        with failing_store(self._url, is_folder=self.folder is not None, may_be_missing=may_be_missing):
            yield


@contextmanager
def failing_store(url: str, *, is_folder: bool, may_be_missing: bool) -> Iterator[None]:
    """Turn the errors of a store, but for that of a folder, into StoreFails with the address."""
    try:
        yield
    except Exception as error:
        if is_folder or (may_be_missing and isinstance(error, FileNotFoundError)):
            raise
        raise StoreFails(f"{url}: {error or type(error).__name__}") from error


def location_of(url: str) -> str:
    """Normalize an address: make a folder absolute, drop a trailing slash of any other. Raises ConfigError."""
    fs, root = open_location(url)
    return root if isinstance(fs, LocalFileSystem) else url.rstrip("/")


def open_location(url: str) -> tuple[Any, str]:
    """Return (fsspec file system, path in it). Raises ConfigError."""
    if not url.strip():
        raise ConfigError("the address is empty; give a folder, or an address such as s3://bucket/folder")
    protocol = url.partition("://")[0]
    try:
        fs, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        needs = f"needs {extra}fs; pip install 'thinwire[{extra}]'" if extra else f"cannot be opened here: {error}"
        raise ConfigError(f"{url}: {needs}") from None
    except ValueError as error:
        raise ConfigError(f"{url}: not an address that updates can be stored at: {error}") from None
    return fs, root.rstrip("/")
