"""Opens a file of a source, counts what is read, and decompresses it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, cast

import zstandard

from thinwire_coordinator.prepare.sources import SourceFile

BUFFER_BYTES = 1 << 18


@contextmanager
def opened(file: SourceFile, advance: Callable[[int], None]) -> Iterator[IO[bytes]]:
    """The contents of a file; decompressed if its name ends in .gz, .zst, .bz2 or .xz.

    advance: told how many bytes were read, before decompression.
    """
    with stored(file, advance) as raw:
        yield _decompressed(file.name, cast(IO[bytes], io.BufferedReader(raw, BUFFER_BYTES)))


@contextmanager
def stored(file: SourceFile, advance: Callable[[int], None]) -> Iterator[io.RawIOBase]:
    """A file as it is stored. In the end `advance` has heard of all its bytes, read or not."""
    with file.open() as raw:
        counted = _Counted(raw, advance)
        yield counted
    advance(max(0, (file.size or 0) - counted.read_bytes))


def _decompressed(name: str, stored: IO[bytes]) -> IO[bytes]:
    suffix = name.rpartition(".")[2].lower()
    if suffix == "gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=stored))
    if suffix == "bz2":
        return bz2.BZ2File(stored)
    if suffix == "xz":
        return lzma.LZMAFile(stored)
    if suffix == "zst":
        return cast(IO[bytes], io.BufferedReader(_Zstd(stored), BUFFER_BYTES))
    return stored


class _Counted(io.RawIOBase):
    """Tells `advance` how many bytes are read from a file."""

    def __init__(self, file: IO[bytes], advance: Callable[[int], None]) -> None:
        super().__init__()
        self._file = file
        self._advance = advance
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.read_bytes += len(data)
        self._advance(len(data))
        return len(data)

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class _Zstd(io.RawIOBase):
    """Decompresses frames one after another. zstandard's own reader takes a truncated file for a whole one."""

    def __init__(self, stored: IO[bytes]) -> None:
        self._stored = stored
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            if self._frame.eof:
                rest = self._frame.unused_data
                self._frame, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
            else:
                rest = b""
            if not (data := rest or self._stored.read(BUFFER_BYTES >> 2)):
                if self._begun:
                    raise EOFError("compressed file ended before the end of its last frame")
                return 0
            self._begun = True
            self._ready = self._frame.decompress(data)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
