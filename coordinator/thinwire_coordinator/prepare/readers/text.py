"""Text files: each is one document; a long one is divided."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator

from thinwire_coordinator.prepare.readers.opening import Content
from thinwire_coordinator.prepare.readers.port import Document, Reading

PART_BYTES = 1 << 18
"""A longer file is divided into documents of up to this many bytes, so that a part of it can be held out."""


def read_text(name: str, content: Content, reading: Reading) -> Iterator[Document]:
    """The documents of a text file in UTF-8. A file with a zero byte in its first part is binary and is skipped; of one
    with a later zero byte, the rest is left out."""
    lines_before, begun = 0, False
    rest = b""
    with io.BufferedReader(content, PART_BYTES) as file:
        while data := rest + file.read(PART_BYTES - len(rest)):
            if (zero := data.find(b"\0")) >= 0:
                if begun:
                    line = lines_before + data.count(b"\n", 0, zero) + 1
                    reading.problems.skip(f"{name}:{line}", "has a zero byte; the rest of the file is left out")
                else:
                    reading.problems.skip_binary(name)
                return
            part, rest = _divided(data) if len(data) == PART_BYTES else (data, b"")
            is_cut_off = content.is_damaged and not rest  # perhaps inside a character
            try:
                text = codecs.utf_8_decode(part, "strict", not is_cut_off)[0]
            except UnicodeDecodeError as error:
                line = lines_before + part.count(b"\n", 0, error.start) + 1
                reading.problems.skip(f"{name}:{line}", f"is not UTF-8: byte 0x{part[error.start]:02x}")
                return
            lines_before, begun = lines_before + part.count(b"\n"), True
            yield text


def _divided(data: bytes) -> tuple[bytes, bytes]:
    """Divide after the last empty line of the second half; without one, after a line; else between characters."""
    half = len(data) // 2
    for mark in (b"\n\n", b"\r\n\r\n", b"\n", b" "):
        if (found := data.rfind(mark, half)) >= 0:
            cut = found + len(mark)
            return data[:cut], data[cut:]
    cut = len(data)
    while cut > len(data) - 4 and data[cut - 1] & 0xC0 == 0x80:  # inside a character of UTF-8
        cut -= 1
    cut -= data[cut - 1] >= 0xC0
    return data[:cut], data[cut:]
