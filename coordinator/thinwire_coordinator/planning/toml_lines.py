"""Finds the line of each key of a TOML file, which Python's parser does not tell."""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str, ...]
QUOTES = ('"""', "'''", '"', "'")
BARE = re.compile(r"[A-Za-z0-9_-]+")


def key_lines(text: str) -> dict[Path, int]:
    """The first line, from 1, of each table and key of a valid TOML file, by its full path.

    Keys inside an inline table or an array are not listed; `line_of` finds the key that holds them.
    """
    lines: dict[Path, int] = {}
    table: Path = ()
    at = 0
    while at < len(text):
        end = _statement_end(text, at)
        statement = text[at:end].strip()
        number = text.count("\n", 0, at + len(text[at:end]) - len(text[at:end].lstrip())) + 1
        at = end + 1
        if statement.startswith("["):
            table = _path(statement.lstrip("["))
            _note(lines, table, number)
        elif statement and not statement.startswith("#"):
            _note(lines, table + _path(statement), number)
    return lines


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a key, or that of the innermost table or key around it that the file has."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def _note(lines: dict[Path, int], path: Path, number: int) -> None:
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], number)


def _path(statement: str) -> Path:
    """The dotted key at the beginning of a statement."""
    parts, at = [], 0
    while at < len(statement):
        if statement[at] in " \t.":
            at += 1
        elif statement[at] in "\"'":
            end = _string_end(statement, at)
            parts.append(statement[at + 1 : end - 1])
            at = end
        elif match := BARE.match(statement, at):
            parts.append(match[0])
            at = match.end()
        else:
            break
    return tuple(parts)


def _statement_end(text: str, at: int) -> int:
    """The end of the line on which the statement that begins at `at` ends. Strings and arrays may span lines."""
    depth = 0
    is_header = text[at:].lstrip(" \t").startswith("[")
    while at < len(text):
        sign = text[at]
        if sign == "\n" and depth <= 0:
            return at
        if sign == "#":
            at = text.find("\n", at)
            if at < 0:
                return len(text)
            continue
        if sign in "\"'":
            at = _string_end(text, at)
            continue
        if not is_header:
            depth += (sign in "[{") - (sign in "]}")
        at += 1
    return len(text)


def _string_end(text: str, at: int) -> int:
    """The place after the string that begins at `at`."""
    quote = next(quote for quote in QUOTES if text.startswith(quote, at))
    at += len(quote)
    while at < len(text) and not text.startswith(quote, at):
        at += 2 if text[at] == "\\" and quote[0] == '"' else 1
    return min(len(text), at + len(quote))
