"""JSON lines: each line is an object with the document's text under a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO

from thinwire_coordinator.prepare.readers.opening import opened
from thinwire_coordinator.prepare.readers.port import DOCUMENT_BYTES_MAX, Document, Reading
from thinwire_coordinator.prepare.readers.text import read_text
from thinwire_coordinator.prepare.sources import SourceFile

LINE_BYTES_MAX = 2 * DOCUMENT_BYTES_MAX
"""Longest line; JSON may take more bytes for a text than UTF-8."""


def read_json_lines(file: SourceFile, reading: Reading) -> Iterator[Document]:
    with opened(file, reading.advance) as content:
        for number, line in _lines(content):
            try:
                yield _text_of(line, reading.text_key)
            except ValueError as error:
                reading.problems.skip(f"{file.name}:{number}", str(error))


def read_json(file: SourceFile, reading: Reading) -> Iterator[Document]:
    """A file that may be one document, such as a configuration, or lines: then its first line is a whole object with
    the text."""
    # 0 bytes, because the documents' reader counts them: a long line of a slow source has not stalled while it comes
    with opened(file, lambda _: reading.advance(0)) as content:
        first = content.readline(LINE_BYTES_MAX)
    return (read_json_lines if _has_text(first, reading.text_key) else read_text)(file, reading)


def _lines(content: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers from 1. Of a line that is too long, its beginning."""
    number = 0
    while line := content.readline(LINE_BYTES_MAX):
        number += 1
        rest = line
        while len(rest) == LINE_BYTES_MAX and not rest.endswith(b"\n"):
            rest = content.readline(LINE_BYTES_MAX)
        if line.strip():
            yield number, line


def _text_of(line: bytes, key: str) -> str:
    """Raises ValueError, which says what is wrong."""
    if len(line) == LINE_BYTES_MAX:
        raise ValueError(f"is longer than {LINE_BYTES_MAX:,} bytes")
    try:
        found = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(found, dict) or key not in found:
        has = ", ".join(list(found)[:8]) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"has no key {key!r}, but {has}; --text-key names the key")
    return checked_text(found[key], key)


def _has_text(line: bytes, key: str) -> bool:
    """Whether a line is an object with the text. Others are not parsed: a large array would take many times its size in
    memory."""
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        _text_of(line, key)
    except ValueError:
        return False
    return True


def checked_text(value: object, key: str) -> str:
    """A value as the text of a document. Raises ValueError if it is none."""
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is not text but {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{key!r} has half a character (a lone surrogate)") from None
    if size > DOCUMENT_BYTES_MAX:
        raise ValueError(f"{key!r} is longer than {DOCUMENT_BYTES_MAX:,} bytes")
    return value
