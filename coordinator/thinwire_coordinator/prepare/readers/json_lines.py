"""JSON lines: each line is an object with the document's text under a key, or with a conversation."""

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
            if not line.endswith((b"\n", b"\r")) and content.is_damaged:
                return  # half a line, which is part of the damage
            where = f"{name}:{number}"
            try:
                row = object_of(line)
            except ValueError as error:
                reading.problems.skip(where, str(error))
                continue
            if (document := reading.read(where, row)) is not None:
                yield document


def _lines(file: io.BufferedReader[Content]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers from 1. They end in \\n, \\r or both, which a text in JSON never
    has inside. Of a line that is too long, its beginning."""
    begun: list[bytes] = []
    number, size = 1, 0
    while data := file.read1(BUFFER_BYTES):
        while data.endswith(b"\r") and (more := file.read1(BUFFER_BYTES)):  # perhaps \r\n
            data += more
        pieces = data.splitlines(keepends=True)
        rest = b"" if data.endswith((b"\n", b"\r")) else pieces.pop()
        for piece in pieces:
            line = b"".join([*begun, piece]) if begun else piece
            if not line.isspace():
                yield number, line
            number, size = number + 1, 0
            begun.clear()
        if size < LINE_BYTES_MAX:
            begun.append(rest)
            size += len(rest)
    if (line := b"".join(begun)).strip():
        yield number, line


def object_of(line: bytes) -> dict[str, Any]:
    """The object of a line. Raises ValueError, which says what is wrong."""
    if len(line) >= LINE_BYTES_MAX:
        raise ValueError(f"is longer than {LINE_BYTES_MAX:,} bytes")
    try:
        found = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"is not an object but {type(found).__name__}")
    return found
