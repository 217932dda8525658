"""Sorts documents by key on disk, in bounded memory.

Documents arrive in any order and do not fit into memory. Each is appended to one of 64 files ("buckets") by the first
six bits of its key. When all have arrived, one bucket after another is read into memory and sorted. A bucket that is
too large is first divided into 64 buckets by the next six bits.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from thinwire_coordinator.prepare.tokenizing import KEY_BYTES, Encoded
from thinwire_proto.errors import ConfigError

BITS = 6
BUCKETS = 1 << BITS
DEPTH_MAX = KEY_BYTES * 8 // BITS
SORTED_BYTES_MAX = 128 << 20
"""Largest bucket that is sorted in memory."""
BUFFER_BYTES = 1 << 16
HEAD = struct.Struct(f"<{KEY_BYTES}sII?")
"""Key, bytes of text, number of tokens, and whether they have marks. The tokens follow, and then the marks."""


class Spill:
    """The buckets of one source, in a folder.

    lengths: how much of each bucket to keep, if the folder is from an interrupted run. Raises ConfigError if less is
    there.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], lengths: list[int] | None = None) -> None:
        self._dtype = dtype
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files: list[IO[bytes]] = []
        for bucket in range(BUCKETS):
            file = (folder / f"{bucket:02x}").open("r+b" if lengths else "wb", BUFFER_BYTES)
            if lengths:
                if file.seek(0, os.SEEK_END) < lengths[bucket]:
                    raise ConfigError(f"{folder} lost data since the command was interrupted; remove {folder.parent}")
                file.truncate(lengths[bucket])
                file.seek(lengths[bucket])
            self._files.append(file)

    def add(self, document: Encoded) -> None:
        _write(self._files[_bucket(document.key, 0)], document, self._dtype)

    def lengths(self) -> list[int]:
        """The length of each bucket, all of which is then on the disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        return [file.tell() for file in self._files]

    def close(self) -> None:
        """Close the buckets. Raises OSError if the last bytes do not fit on the disk."""
        for file in self._files:
            file.close()

    def abandon(self) -> None:
        """Close the buckets; what is not yet written may be lost."""
        for file in self._files:
            with suppress(OSError):
                file.close()

    def sorted(self, sorted_bytes_max: int = SORTED_BYTES_MAX) -> Iterator[Encoded]:
        """All documents, ordered by key, after `close`. sorted_bytes_max: largest bucket that is sorted in memory."""
        for bucket in range(BUCKETS):
            yield from self._sorted(self._folder / f"{bucket:02x}", 0, sorted_bytes_max)

    def _sorted(self, path: Path, depth: int, sorted_bytes_max: int) -> Iterator[Encoded]:
        if path.stat().st_size <= sorted_bytes_max:
            yield from sorted(self._read(path), key=lambda document: document.key)
        elif depth == DEPTH_MAX - 1:
            yield from self._read(path)  # documents with the same key are the same
        else:
            yield from self._divided(path, depth + 1, sorted_bytes_max)

    def _divided(self, path: Path, depth: int, sorted_bytes_max: int) -> Iterator[Encoded]:
        parts = [path.with_name(f"{path.name}-{bucket:02x}") for bucket in range(BUCKETS)]
        files = [part.open("wb", BUFFER_BYTES) for part in parts]
        try:
            for document in self._read(path):
                _write(files[_bucket(document.key, depth)], document, self._dtype)
        finally:
            for file in files:
                file.close()
        for part in parts:
            yield from self._sorted(part, depth, sorted_bytes_max)
            part.unlink()

    def _read(self, path: Path) -> Iterator[Encoded]:
        with path.open("rb") as file:
            while head := file.read(HEAD.size):
                key, text_bytes, count, is_marked = HEAD.unpack(head)
                tokens = np.frombuffer(file.read(count * self._dtype.itemsize), self._dtype)
                marks = np.frombuffer(file.read(count), np.uint8) if is_marked else None
                yield Encoded(key, text_bytes, tokens, marks)


def _write(file: IO[bytes], document: Encoded, dtype: np.dtype[Any]) -> None:
    marks = document.marks
    file.write(HEAD.pack(document.key, document.text_bytes, len(document.tokens), marks is not None))
    file.write(document.tokens.astype(dtype, copy=False).tobytes())
    if marks is not None:
        file.write(marks.tobytes())


def _bucket(key: bytes, depth: int) -> int:
    """Six bits of a key, so that the order of buckets is the order of keys."""
    shift = KEY_BYTES * 8 - BITS * (depth + 1)
    return int.from_bytes(key, "big") >> shift & (BUCKETS - 1)
