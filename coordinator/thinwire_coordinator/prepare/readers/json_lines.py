"""JSON lines, each an object with the document's text under a key or with a conversation; and one array of such."""

from __future__ import annotations

import codecs
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


WHITE = " \t\r\n"
DECODER = json.JSONDecoder()


def read_json_array(name: str, content: Content, reading: Reading) -> Iterator[Document]:
    """Yield the documents of an array. The reader leaves out the rest after something that is not JSON, and says so."""
    number = 1
    try:
        for number, element in enumerate(_elements(content), 1):
            where = f"{name}, element {number}"
            if not isinstance(element, dict):
                reading.problems.skip(where, f"is not an object but {type(element).__name__}")
            elif (document := reading.read(where, element)) is not None:
                yield document
    except ValueError as error:
        if not content.is_damaged:  # which is reported by itself
            reading.problems.skip(f"{name}, after element {number}", f"{error}; the rest of the file is left out")


def _elements(content: Content) -> Iterator[Any]:
    """The elements of an array, one by one, since a whole one takes many times its size. Raises ValueError, which says
    what is wrong."""
    decode = codecs.getincrementaldecoder("utf-8")()
    text, at, is_first = "", 0, True
    with io.BufferedReader(content, BUFFER_BYTES) as file:

        def more() -> bool:
            """Read as much again as there is, so that an element of any size is parsed a few times at most."""
            nonlocal text, at
            data = file.read(max(BUFFER_BYTES, len(text) - at))
            text, at = text[at:] + decode.decode(data, final=not data), 0
            return bool(data)

        def next_mark() -> str:
            nonlocal at
            while True:
                while at < len(text) and text[at] in WHITE:
                    at += 1
                if at < len(text):
                    return text[at]
                if not more():
                    raise ValueError("the array has no end")

        while (mark := next_mark()) != "]" or is_first:
            if mark != ("[" if is_first else ","):
                raise ValueError(f"{mark!r} is not JSON there")
            at += 1
            if next_mark() == "]" and is_first:
                break
            is_first = False
            while True:
                try:
                    element, end = DECODER.raw_decode(text, at)
                except RecursionError:
                    raise ValueError("is nested too deeply") from None
                except json.JSONDecodeError as error:
                    if len(text) - at >= LINE_BYTES_MAX or not more():
                        raise ValueError(f"is not JSON: {error.msg}") from None
                else:
                    break
            at = end
            yield element
        at += 1
        if text[at:].strip(WHITE) or file.read(1).strip():
            raise ValueError("the array has ended, and there is more")
