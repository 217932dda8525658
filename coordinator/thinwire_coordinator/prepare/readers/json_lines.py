"""JSON lines: each line is an object with the document's text under a key."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

from thinwire_coordinator.prepare.readers.opening import BUFFER_BYTES, Content
from thinwire_coordinator.prepare.readers.port import LINE_BYTES_MAX, Document, Reading


def read_json_lines(name: str, content: Content, reading: Reading) -> Iterator[Document]:
    with io.BufferedReader(content, BUFFER_BYTES) as file:
        for number, line in _lines(file):
            if content.is_damaged and not line.endswith((b"\n", b"\r")):
                return  # half a line, which is part of the damage
            try:
                value = value_of(line, reading.text_key)
            except ValueError as error:
                reading.problems.skip(f"{name}:{number}", str(error))
                continue
            yield from reading.document(value, f"{name}:{number}")


def _lines(file: io.BufferedReader[Content]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers from 1. They end in \\n, \\r or both, which a text in JSON never
    has inside. Of a line that is too long, its beginning."""
    number, parts, size = 1, [], 0
    while data := file.read1(BUFFER_BYTES):
        while data.endswith(b"\r") and (more := file.read1(BUFFER_BYTES)):  # perhaps \r\n
            data += more
        for piece in data.splitlines(keepends=True):
            if size < LINE_BYTES_MAX:
                parts.append(piece)
                size += len(piece)
            if piece.endswith((b"\n", b"\r")):
                line = b"".join(parts)
                if line.strip():
                    yield number, line
                number, parts, size = number + 1, [], 0
    if (line := b"".join(parts)).strip():
        yield number, line


def value_of(line: bytes, key: str) -> Any:
    """The value under a key of a line. Raises ValueError, which says what is wrong."""
    if len(line) >= LINE_BYTES_MAX:
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
    return found[key]
