"""One array of JSON: each element is an object, as a line of JSON lines is. Conversations are often published so."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from typing import Any

from thinwire_coordinator.prepare.readers.opening import BUFFER_BYTES, Content
from thinwire_coordinator.prepare.readers.port import LINE_BYTES_MAX, Document, Reading

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
