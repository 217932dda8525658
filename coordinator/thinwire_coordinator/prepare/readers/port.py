"""The interface of readers: what they are given, and what they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.prepare.conversations import (
    KEYS,
    MESSAGES,
    Conversation,
    LeftOut,
    Preference,
    Rendered,
    conversation_of,
    has_conversation,
    has_preference,
    preference_of,
)
from thinwire_coordinator.prepare.problems import Problems
from thinwire_proto.errors import ConfigError

DOCUMENT_BYTES_MAX = 1 << 26
"""Longest document, in bytes of UTF-8."""
LINE_BYTES_MAX = 2 * DOCUMENT_BYTES_MAX
"""Longest line; JSON may take more bytes for a text than UTF-8."""
Tokens = npt.NDArray[np.uint32]
Document = str | Tokens | Rendered
"""The text of a document, its tokens if the source has no text, or a conversation or a preference."""


@dataclass(frozen=True)
class Reading:
    """Settings of readers besides the file.

    text_key: the key or column that has the text. end, vocabulary: of the tokenizer, for files of tokens. problems:
    takes what cannot be read. advance: told how many bytes of the file were read. render: renders a conversation or a
    preference; None if there is no chat template.
    """

    text_key: str
    end: int | None
    vocabulary: int
    problems: Problems
    advance: Callable[[int], None] = lambda count: None
    render: Callable[[Conversation | Preference], Rendered] | None = None

    def read(self, where: str, row: Mapping[str, Any]) -> Document | None:
        """The document of a row, from the key `text_key` or from those of a conversation; None if it is left out, which
        is counted. where: the row, for a report. Raises TooManyProblems, and ConfigError if there is no template."""
        try:
            return self._document(row)
        except LeftOut as error:
            self.problems.leave_out(where, error.count, str(error))
        except ValueError as error:
            self.problems.skip(where, str(error))
        return None

    def has_document(self, keys: Collection[str]) -> bool:
        return self.text_key in keys or has_conversation(dict.fromkeys(keys))

    def keys(self, keys: Iterable[str]) -> list[str]:
        found = list(keys)
        return [self.text_key] if self.text_key in found else [key for key in found if key in KEYS]

    def _document(self, row: Mapping[str, Any]) -> Document | None:
        if self.text_key in row and not isinstance(row[self.text_key], list):
            return self.text_of(row[self.text_key])
        if self.text_key in row:
            row = {MESSAGES[0]: row[self.text_key], "tools": row.get("tools")}
        elif not has_conversation(row):
            raise ValueError(
                f"has no key {self.text_key!r}, and no conversation, but {', '.join(list(row)[:8])}; --text-key names "
                "the key"
            )
        found = preference_of(row) if has_preference(row) else conversation_of(row)
        if self.render is None:
            raise ConfigError(
                "a source has conversations, and there is no chat template to write them with: give the base's own "
                "with --tokenizer FOLDER, or one with --chat-template FILE; text from another key: --text-key"
            )
        rendered = self.render(found)
        _check_text("its conversation", rendered.whole)
        return rendered

    def text_of(self, value: object) -> str | None:
        """The value of `text_key` as the text of a document; None if it is a null, which is counted. Raises ValueError,
        which says what is wrong."""
        if value is None or (isinstance(value, float) and math.isnan(value)):  # pandas has NaN for a null
            self.problems.leave_null()
            return None
        if not isinstance(value, str):
            raise ValueError(f"{self.text_key!r} is not text but {type(value).__name__}")
        _check_text(repr(self.text_key), value)
        return value


def _check_text(name: str, text: str) -> None:
    """Raise ValueError if a text cannot be a document."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half a character (a lone surrogate)") from None
    if size > DOCUMENT_BYTES_MAX:
        raise ValueError(f"{name} is longer than {DOCUMENT_BYTES_MAX:,} bytes")
