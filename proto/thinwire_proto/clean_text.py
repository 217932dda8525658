"""Cleans names and texts that strangers send, before they reach a terminal, a page, a log, a label or a file.

Whoever chooses a text could otherwise move the cursor of a terminal (escape sequences), begin a log line of their own
(line breaks), show a text backwards or hide a part of it (bidirectional controls, letters of no width), bury the line
above under accents, or send a megabyte. So a cleaned text is one line of visible letters, with a bound on its length.
What is removed costs some scripts and emoji a little: joiners have no width, so they go too.

The text stays text: a place with a syntax of its own (HTML, Markdown, the labels of Prometheus) still has to escape it.
"""

from __future__ import annotations

import re
import unicodedata

NAME_GRAPHEMES_MAX = 64
NAME_BYTES_MAX = 256
"""Bounds of a name. A grapheme is a letter with its accents: what a reader takes for one sign."""
TEXT_BYTES_MAX = 1000
"""Bound of a sentence, such as a refusal or the reason why a contribution does not count."""
MARKS_MAX = 4
"""Accents on one letter. Vietnamese needs 2, Hebrew with its points 3."""
READ_MAX = 8
"""Of a text, at most this many times the wanted bytes are looked at, so that a megabyte costs nothing."""
CUT = "…"
REPLACEMENT = "\ufffd"

_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"  # strings: titles, links, clipboard
    "|\x1b[ -/]*[0-~]?"
)
_SPACES = re.compile(r"\s+")
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that are drawn as nothing, although Unicode calls them printable."""
_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors: marks that are drawn as nothing, and can carry a hidden text."""


def clean_name(name: str) -> str:
    """A name as it may be shown: see the module. Empty if nothing of it can be seen."""
    return clean_text(name, NAME_BYTES_MAX, NAME_GRAPHEMES_MAX)


def clean_text(text: str, bytes_max: int = TEXT_BYTES_MAX, graphemes_max: int | None = None) -> str:
    """One line of visible letters, at most `bytes_max` bytes in UTF-8 and `graphemes_max` graphemes.

    A longer text ends with CUT."""
    read = READ_MAX * bytes_max
    visible = _ESCAPES.sub("", text[:read])
    visible = unicodedata.normalize("NFC", "".join(_seen(letter) for letter in _SPACES.sub(" ", visible)))
    graphemes = _graphemes(_SPACES.sub(" ", visible))
    most = len(graphemes) if graphemes_max is None else graphemes_max
    whole = len(text) <= read and len(graphemes) <= most and sum(map(_size, graphemes)) <= bytes_max
    if whole:
        return "".join(graphemes)
    kept, room = [], bytes_max - _size(CUT)
    for grapheme in graphemes[: most - 1]:
        room -= _size(grapheme)
        if room < 0:
            break
        kept.append(grapheme)
    return "".join(kept).rstrip(" ") + CUT if kept else ""


def shown_as_written(text: str) -> str:
    """A text of several lines, such as one that a model wrote: its letters, line breaks and tabs.

    Each thing that cannot be seen becomes REPLACEMENT."""
    return "".join(letter if letter in "\n\t" or letter.isprintable() else REPLACEMENT for letter in text)


def escaped_in_json(line: str) -> str:
    r"""A line of JSON with the same contents, in which nothing is invisible: such letters are written as \uXXXX."""
    if line.isprintable():
        return line
    return "".join(letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in line)


def _seen(letter: str) -> str:
    return letter if letter == " " or (letter.isprintable() and not _is_blank(letter)) else ""


def _is_blank(letter: str) -> bool:
    return letter in _BLANK or any(ord(letter) in selectors for selectors in _SELECTORS)


def _graphemes(text: str) -> list[str]:
    """Letters with their accents, at most MARKS_MAX each. An accent without a letter is dropped.

    So spaces around one meet here: only one is kept, and none at the ends."""
    found: list[str] = []
    marks = 0
    for letter in text:
        if letter == " " and (not found or found[-1] == " "):
            continue
        if letter.isascii() or not unicodedata.category(letter).startswith("M"):
            found.append(letter)
            marks = 0
        elif found and found[-1] != " " and marks < MARKS_MAX:
            found[-1] += letter
            marks += 1
    return found[:-1] if found and found[-1] == " " else found


def _size(text: str) -> int:
    return len(text.encode())


def _escape(letter: str) -> str:
    code = ord(letter)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
