"""Undoes how a file is coded: compression, or text in UTF-16 or UTF-32.

A compressed file may have several parts, with zeros between and after them; each format's own tool reads all of them.
The libraries differ here from the tools and from each other: they stop at padding (lzma), pass over what follows
(bz2), refuse large windows or take a truncated file for a whole one (zstandard), or lose what they have read when they
raise (gzip). So this module drives their decompressors part by part.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import zstandard

READ_BYTES = 1 << 15
PIECE_BYTES = 1 << 12
"""zstandard does not bound its output, and 4 KiB may become 128 MiB."""
OUTPUT_BYTES = 1 << 18
ZSTD_WINDOW_BYTES_MAX = 1 << 31
"""The largest window that `zstd --ultra --long=31` makes. Memory is used as the text fills it."""
DAMAGE = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
"""Raised by decompressors."""


class _Decompressor(Protocol):
    """As in `bz2` and `lzma`. Decompresses one part."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


@dataclass(frozen=True)
class Coding:
    """suffixes: of names of such files. magics: with one of these each part begins. has_end: a part says where it
    ends."""

    name: str
    suffixes: tuple[str, ...]
    magics: tuple[bytes, ...]
    decompressor: Callable[[], _Decompressor]
    has_end: bool = True


class _Gzip:
    """A member of a gzip file."""

    def __init__(self) -> None:
        self._library = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._library.eof

    @property
    def unused_data(self) -> bytes:
        return self._library.unused_data

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        found = self._library.decompress(self._library.unconsumed_tail + data, max_length)
        self.needs_input = len(found) < max_length
        return found


class _Zstd:
    """A frame of a zstd file, or one that its tool skips."""

    def __init__(self) -> None:
        self._library = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).decompressobj()
        self._input = b""

    @property
    def eof(self) -> bool:
        return self._library.eof

    @property
    def needs_input(self) -> bool:
        return not self._input

    @property
    def unused_data(self) -> bytes:
        return self._library.unused_data + self._input

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        data = self._input + data
        self._input = data[PIECE_BYTES:]
        return self._library.decompress(data[:PIECE_BYTES])


class _CharacterSet:
    """Text with a byte order mark, as UTF-8."""

    eof, needs_input, unused_data = False, True, b""

    def __init__(self, name: str) -> None:
        self._library = codecs.getincrementaldecoder(name)()

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        return self._library.decode(data, not data).encode()


ZSTD_SKIPPED = tuple(bytes([0x50 + number]) + b"\x2a\x4d\x18" for number in range(16))
CODINGS = (
    Coding("gzip", (".gz", ".gzip"), (b"\x1f\x8b\x08",), _Gzip),
    Coding("zstd", (".zst", ".zstd"), (b"\x28\xb5\x2f\xfd", *ZSTD_SKIPPED), _Zstd),
    Coding(
        "bzip2",
        (".bz2",),
        tuple(b"BZh%d" % level + block for level in range(1, 10) for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")),
        bz2.BZ2Decompressor,
    ),
    Coding("xz", (".xz", ".lzma"), (b"\xfd7zXZ\0",), lzma.LZMADecompressor),  # which reads the older format too
    Coding("UTF-32", (), (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), lambda: _CharacterSet("utf-32"), False),
    Coding("UTF-16", (), (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), lambda: _CharacterSet("utf-16"), False),
)
MAGIC_BYTES_MAX = max(len(magic) for coding in CODINGS for magic in coding.magics)


class Decoded(io.RawIOBase):
    """A file without its coding. It ends where the rest cannot be decoded.

    damage: what is wrong with the rest. left_over_bytes: what follows the last part.
    """

    def __init__(self, stored: io.RawIOBase, coding: Coding) -> None:
        super().__init__()
        self._stored = stored
        self._coding = coding
        self._decompressor = coding.decompressor()
        self._taken = b""
        self._ready = memoryview(b"")
        self._ended = False
        self.damage: str | None = None
        self.left_over_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready and not self._ended:
            self._ready = memoryview(self._next())
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def problem(self) -> str | None:
        """Say in words what was not read."""
        if self.damage is not None:
            return f"is damaged, and the rest of it is left out: {self.damage}"
        if self.left_over_bytes:
            return f"{self.left_over_bytes:,} bytes after the end of its {self._coding.name} data are left out"
        return None

    def _next(self) -> bytes:
        if self._decompressor.eof and not self._begin_part():
            return b""
        data = self._take() if self._decompressor.needs_input else b""
        is_last = not data and self._decompressor.needs_input
        try:
            found = self._decompressor.decompress(data, OUTPUT_BYTES)
            if is_last and not found and not self._decompressor.eof:
                self._ended = True
                if self._coding.has_end:
                    raise EOFError(f"it ends before its {self._coding.name} data do")
        except DAMAGE as error:
            self.damage, self._ended = str(error), True
            return b""
        return found

    def _begin_part(self) -> bool:
        """Begin the part that follows; without one, end, and count what follows instead."""
        rest = self._decompressor.unused_data
        while not (rest := rest.lstrip(b"\0")) and (rest := self._take()):
            pass
        while 0 < len(rest) < MAGIC_BYTES_MAX and (data := self._take()):
            rest += data
        if rest.startswith(self._coding.magics):
            self._decompressor, self._taken = self._coding.decompressor(), rest
            return True
        self._ended = True
        while rest:
            self.left_over_bytes += len(rest)
            rest = self._take()
        return False

    def _take(self) -> bytes:
        if self._taken:
            taken, self._taken = self._taken, b""
            return taken
        return self._stored.read(READ_BYTES) or b""
