"""Bodies of updates: immutable files named by their hash, at any address that fsspec opens (a local folder by default).

In a folder, a body is written under a passing name, synced, renamed, and the folder synced: a file that has its name is
whole. Object stores show a file when it is whole, and not before.
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
"""Which extra of thinwire installs what a protocol needs."""


class Bodies:
    """`url`: a folder, or any address that fsspec opens. Raises ConfigError if it cannot be opened here, and OSError
    where the disk or the store fails."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._root = _open(url)
        self.place = place_of(url)
        with self._failing():
            self._fs.makedirs(self._root, exist_ok=True)

    @property
    def folder(self) -> Path | None:
        """Where they lie, if that is a local folder."""
        return Path(self._root) if isinstance(self._fs, LocalFileSystem) else None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def put(self, body: bytes) -> bytes:
        """Store a body for good and return its hash."""
        body_hash = hashlib.sha256(body).digest()
        path = self._path(body_hash.hex())
        if self.folder:
            replace_synced(Path(path), body)
        else:
            with self._failing():
                self._fs.pipe_file(path, body)
        return body_hash

    def get(self, body_hash: bytes, size: int) -> bytes:
        """Raises Damaged if the body is not there, or is not what its name says."""
        name = body_hash.hex()
        try:
            with self._failing():
                body = bytes(self._fs.cat_file(self._path(name), start=0, end=size + 1))
        except FileNotFoundError:
            raise Damaged(f"body {name} is missing", restore="it") from None
        if hashlib.sha256(body).digest() != body_hash:
            torn = f": it has {len(body)} of {size} bytes" if len(body) < size else ""
            raise Damaged(f"body {name} does not have the hash that its name says{torn}", restore="it")
        return body

    def names(self) -> set[str]:
        """Of all bodies that are there."""
        return {name for name in self.everything() if NAME.fullmatch(name)}

    def everything(self) -> list[str]:
        """The names of all that lies at the address, bodies or not."""
        try:
            with self._failing():
                self._fs.invalidate_cache()
                return [path.rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._root, detail=False)]
        except FileNotFoundError:  # a store has no empty folders
            return []

    def check_writable(self) -> None:
        """Raises OSError if nothing can be written here: better now than when a round is to be sealed."""
        with self._failing():
            self._fs.pipe_file(self._path("writable.part"), b"")
        self.remove(["writable.part"])

    def remove(self, names: Iterable[str]) -> None:
        """In the order given; what is gone already is gone."""
        for name in names:
            with self._failing(), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def remove_passing(self) -> None:
        """What a crash left under passing names."""
        self.remove(name for name in self.everything() if name.endswith(".part") and NAME.match(name))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Each store has errors of its own for a network or a permission that fails: make them one kind, that names
        the address."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            if self.folder:
                raise
            raise OSError(f"{self._url}: {error or type(error).__name__}") from error


def place_of(url: str) -> str:
    """An address in one way of writing it: a folder as an absolute path, others with their protocol and no slash
    behind. Raises ConfigError."""
    fs, root = _open(url)
    return root if isinstance(fs, LocalFileSystem) else url.rstrip("/")


def _open(url: str) -> tuple[Any, str]:
    """(fsspec's file system, the path in it). Raises ConfigError."""
    protocol = url.partition("://")[0]
    try:
        fs, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        needs = f"needs {extra}fs; pip install 'thinwire[{extra}]'" if extra else f"cannot be opened here: {error}"
        raise ConfigError(f"{url}: {needs}") from None
    except ValueError as error:
        raise ConfigError(f"{url}: is not an address for updates: {error}") from None
    return fs, root.rstrip("/")
