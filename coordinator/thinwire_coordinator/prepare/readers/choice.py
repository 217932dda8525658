"""Chooses how a file is read, by its name and its first bytes."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, Protocol

from thinwire_coordinator.prepare.conversations import KEYS, has_conversation
from thinwire_coordinator.prepare.readers.arrow import ARROW_MAGICS, read_arrow
from thinwire_coordinator.prepare.readers.codings import CODINGS, Coding
from thinwire_coordinator.prepare.readers.json_lines import read_json_array, read_json_lines
from thinwire_coordinator.prepare.readers.opening import BEGIN_BYTES, Content, stored
from thinwire_coordinator.prepare.readers.parquet import read_parquet
from thinwire_coordinator.prepare.readers.port import LINE_BYTES_MAX, Document, Reading
from thinwire_coordinator.prepare.readers.text import read_text
from thinwire_coordinator.prepare.readers.token_files import LLM_C_MAGICS, read_token_file
from thinwire_coordinator.prepare.sources import SourceFile
from thinwire_proto.lfs_pointer import IS_LFS_POINTER, is_lfs_pointer

LAYERS_MAX = 4
"""A server may compress what is compressed already, and text may be in UTF-16."""
LINES_LOOKED_AT = 16
WHITE = b" \t\r\n" + codecs.BOM_UTF8
"""Bytes that may come before an object of JSON."""
TABLE_LINES_MIN = 4
WEB_PAGE = re.compile(r"\s*<(!doctype html|html[\s>])", re.IGNORECASE)
JSON_START = re.compile(r"[\s\[]*\{\s*\"(?:[^\"\\]|\\.)*\"\s*:|\s*\[\s*\"(?:[^\"\\]|\\.)*\"\s*[,\]]")


class Reader(Protocol):
    def __call__(self, name: str, content: Content, reading: Reading) -> Iterator[Document]:
        """The documents of a file. Reports what it skips to `reading.problems`.

        Raises what the file system raises if the file cannot be reached.
        """


TOKEN_FILE, JSON, TABLES = ".bin", ".json", (".csv", ".tsv", ".tab")
SUFFIXES: tuple[tuple[tuple[str, ...], Reader], ...] = (
    ((".jsonl", ".ndjson"), read_json_lines),
    ((".parquet",), read_parquet),
    ((".arrow",), read_arrow),
)
MAGICS: tuple[tuple[tuple[bytes, ...], Reader], ...] = (
    ((b"PAR1", b"PARE"), read_parquet),
    (ARROW_MAGICS, read_arrow),
    (LLM_C_MAGICS, read_token_file),
)


def read_documents(file: SourceFile, reading: Reading) -> Iterator[Document]:
    """The documents of a file. Reports what it skips to `reading.problems`. Raises what the file system raises."""
    with stored(file, reading.advance) as raw:
        content, name = Content(raw), file.name
        for _ in range(LAYERS_MAX):
            if (coding := coding_of(name, content.begin())) is None:
                break
            content.undo(coding)
            name = _without_suffix(name)
        begin = content.begin(whole_line=content.begin().lstrip(WHITE).startswith(b"{"))
        if is_lfs_pointer(begin):
            reading.problems.skip(file.name, IS_LFS_POINTER)
            return
        reader = reader_of(name, begin, reading.text_key)
        if reader in (read_text, read_json_lines, read_json_array):
            content.drop_mark()
        if reader is read_text and (what := _resembles(name, begin, reading.text_key)):
            reading.problems.read_as_text(file.name, what)
        yield from reader(file.name, content, reading)
        if problem := content.problem():
            reading.problems.skip(file.name, problem)


def coding_of(name: str, begin: bytes) -> Coding | None:
    """Return the coding of a file that begins like this; None if it has none.

    A text is not compressed, whatever its name says: a server or a browser may have decompressed it."""
    for coding in CODINGS:
        if begin.startswith(coding.magics) and _may_be(coding, name.lower(), begin):
            return coding
    named = next((coding for coding in CODINGS if name.lower().endswith(coding.suffixes)), None)
    is_cut = named is not None and any(magic.startswith(begin) for magic in named.magics)
    is_decoded = _text_of(begin) is not None or _reader_by_magic(begin) is not None
    return named if is_cut or not is_decoded else None


def _may_be(coding: Coding, name: str, begin: bytes) -> bool:
    """Whether a file that begins as this coding does has it. Tokens and other numbers may begin in the same way."""
    return coding.has_end or not (name.endswith(TOKEN_FILE) or _text_of(begin, coding.name) is None)


def reader_of(name: str, begin: bytes, text_key: str) -> Reader:
    """The reader of a file whose contents, with no coding left, begin like this."""
    while (bare := _without_suffix(name)) != name:
        name = bare
    name = name.lower()
    if name.endswith(TOKEN_FILE):
        return read_token_file
    by_name = (reader for suffixes, reader in SUFFIXES if name.endswith(suffixes))
    if reader := _reader_by_magic(begin) or next(by_name, None):
        return reader
    if name.endswith(JSON) and _is_array(begin, text_key):
        return read_json_array
    return read_json_lines if _are_json_lines(name, begin, text_key) else read_text


def _reader_by_magic(begin: bytes) -> Reader | None:
    found = next((reader for magics, reader in MAGICS if begin.startswith(magics)), None)
    return found if _text_of(begin) is None else None


def _is_array(begin: bytes, text_key: str) -> bool:
    """Whether a text is an array whose first element is an object with the text, or with a conversation. Of an element
    that goes on, the beginning must name its key."""
    text = (_text_of(begin) or "").lstrip()
    first = text.removeprefix("[").lstrip()
    if first == text or not first.startswith("{"):
        return False
    try:
        element = json.JSONDecoder().raw_decode(first)[0]
    except (ValueError, RecursionError):
        return any(re.search(rf"{re.escape(json.dumps(key))}\s*:", first) for key in (text_key, *KEYS))
    return text_key in element or has_conversation(element)


def _are_json_lines(name: str, begin: bytes, text_key: str) -> bool:
    """Whether the first lines are objects and one of them has the text. In a file that is called JSON, most lines are
    enough, and if there are several, the key may be missing: `--text-key` may be wrong."""
    *whole, last = [line for line in begin.splitlines() if line.strip(WHITE)][: LINES_LOOKED_AT + 1] or [b""]
    found = [_parsed(line) for line in whole or [last]]
    objects = [each for each in found if isinstance(each, dict)]
    goes_on = bool(whole) and last.lstrip(WHITE).startswith(b"{")  # the last one may be cut
    has_text = any(text_key in each or has_conversation(each) for each in objects)
    if not name.endswith(JSON):
        return has_text and len(objects) == len(found) and (goes_on or not whole)
    return 2 * len(objects) > len(found) and (has_text or len(objects) > 1 or goes_on)


def _parsed(line: bytes) -> Any:
    """Others than objects are not parsed: a large array would take many times its size in memory."""
    if not line.lstrip(WHITE).startswith(b"{") or len(line) >= LINE_BYTES_MAX:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _resembles(name: str, begin: bytes, text_key: str) -> str | None:
    """Say in words what a file that is read as text looks like; None if it looks like text, or is binary."""
    name, text = name.lower(), _text_of(begin)
    if not text:
        return None
    if name.endswith(JSON) or JSON_START.match(text):
        return f"although it looks like JSON: its first lines are not objects with the key {text_key!r} (--text-key)"
    if WEB_PAGE.match(text) and not name.endswith((".html", ".htm", ".xhtml")):
        return "although it looks like a web page: the address may be of a page about a file"
    if name.endswith(TABLES) or _is_table(text):
        return "although it looks like a table: for a document of each row, make it Parquet or JSON lines"
    return None


def _is_table(text: str) -> bool:
    """Whether the first lines have the same number of tabs, or of at least two commas."""
    lines = text.split("\n")[: LINES_LOOKED_AT + 1][:-1]
    counts = [{line.count(mark) for line in lines} for mark in ("\t", ",")]
    return len(lines) >= TABLE_LINES_MIN and any(
        len(count) == 1 and min(count) > more for more, count in enumerate(counts)
    )


def _text_of(begin: bytes, character_set: str = "utf-8") -> str | None:
    """The beginning of a file as text, perhaps without half a character at its end; None if it is binary."""
    try:
        text = codecs.getincrementaldecoder(character_set)().decode(begin[:BEGIN_BYTES])
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.removeprefix("\ufeff")


def _without_suffix(name: str) -> str:
    suffixes = (suffix for coding in CODINGS for suffix in coding.suffixes)
    return next((name[: -len(suffix)] for suffix in suffixes if name.lower().endswith(suffix)), name)
