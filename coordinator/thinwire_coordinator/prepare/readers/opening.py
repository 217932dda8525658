"""Opens a file of a source, counts what is read, and undoes its codings."""

from __future__ import annotations

import codecs
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, cast

from thinwire_coordinator.prepare.readers.codings import Coding, Decoded
from thinwire_coordinator.prepare.readers.port import LINE_BYTES_MAX
from thinwire_coordinator.prepare.sources import SourceFile

BUFFER_BYTES = 1 << 18
LINE_END = re.compile(rb"[\r\n]")
BEGIN_BYTES = 1 << 16
"""Bytes by which a format is recognized."""


@contextmanager
def stored(file: SourceFile, advance: Callable[[int], None]) -> Iterator[io.RawIOBase]:
    """A file as it is stored. advance: told how many bytes were read; in the end it has heard of all of them, read or
    not."""
    with file.open(as_stored=True) as raw:
        counted = _Counted(raw, file.size is not None and raw.seekable(), advance)
        yield counted
    advance(max(0, (file.size or 0) - counted.read_bytes))


class Content(io.RawIOBase):
    """A file whose beginning can be looked at, and whose codings are undone one by one."""

    def __init__(self, file: io.RawIOBase) -> None:
        super().__init__()
        self._file = file
        self._layers: list[Decoded] = []
        self._ahead = b""
        self._at = 0

    def begin(self, whole_line: bool = False) -> bytes:
        """The first BEGIN_BYTES. whole_line: more if the first line is longer. Nothing is read yet."""
        parts, size = [self._ahead], len(self._ahead)
        while size < BEGIN_BYTES or (whole_line and size < LINE_BYTES_MAX and not LINE_END.search(parts[-1])):
            if not (data := self._file.read(BUFFER_BYTES)):
                break
            parts.append(data)
            size += len(data)
        self._ahead = b"".join(parts)
        return self._ahead

    def undo(self, coding: Coding) -> None:
        """Go on with the contents without this coding. Nothing is read yet."""
        layer = Decoded(self._rest(), coding)
        self._layers.append(layer)
        self._file, self._ahead, self._at = layer, b"", 0

    def drop_mark(self) -> None:
        """Pass over the byte order mark of UTF-8. Nothing is read yet."""
        self._ahead = self._ahead.removeprefix(codecs.BOM_UTF8)

    @property
    def is_damaged(self) -> bool:
        """Whether it ended because the rest cannot be decoded."""
        return any(layer.damage is not None for layer in self._layers)

    def problem(self) -> str | None:
        """Say in words what was not read, once all is read. If a layer is damaged, so are those within."""
        return next((problem for layer in self._layers if (problem := layer.problem()) is not None), None)

    def _rest(self) -> io.RawIOBase:
        rest = Content(self._file)
        rest._ahead = self._ahead
        return rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._ahead:
            count = min(len(buffer), len(self._ahead) - self._at)
            buffer[:count] = self._ahead[self._at : self._at + count]
            self._at += count
            if self._at == len(self._ahead):
                self._ahead, self._at = b"", 0
            return count
        return self._file.readinto(buffer) or 0

    @contextmanager
    def seekable_file(self) -> Iterator[IO[bytes]]:
        """All of the file, in which the caller may seek. It is copied to a temporary file if need be."""
        if self._file.seekable():
            self._ahead = b""
            self._file.seek(0)
            yield cast(IO[bytes], io.BufferedReader(self._file, BUFFER_BYTES))
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(self, copy, BUFFER_BYTES)
            copy.seek(0)
            yield copy


class _Counted(io.RawIOBase):
    """Tells `advance` how many bytes are read from a file."""

    def __init__(self, file: IO[bytes], is_seekable: bool, advance: Callable[[int], None]) -> None:
        super().__init__()
        self._file = file
        self._is_seekable = is_seekable
        self._advance = advance
        self._ended = False
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._ended:  # aiohttp takes reading on at the end for a mistake, and logs it
            return 0
        data = self._file.read(len(buffer))
        self._ended = not data and len(buffer) > 0
        buffer[: len(data)] = data
        self.read_bytes += len(data)
        self._advance(len(data))
        return len(data)

    def seekable(self) -> bool:
        return self._is_seekable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._ended = False
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()
