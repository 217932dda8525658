"""What readers are given, and what they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.prepare.problems import Problems

DOCUMENT_BYTES_MAX = 1 << 26
"""Longest document, in bytes of UTF-8."""
LINE_BYTES_MAX = 2 * DOCUMENT_BYTES_MAX
"""Longest line; JSON may take more bytes for a text than UTF-8."""
Tokens = npt.NDArray[np.uint32]
Document = str | Tokens
"""The text of a document, or its tokens if the source has no text."""


@dataclass(frozen=True)
class Reading:
    """Settings of readers besides the file.

    text_key: the key or column that has the text. end, vocabulary: of the tokenizer, for files of tokens. problems:
    takes what cannot be read. advance: told how many bytes of the file were read.
    """

    text_key: str
    end: int | None
    vocabulary: int
    problems: Problems
    advance: Callable[[int], None] = lambda count: None

    def document(self, value: object, where: str) -> Iterator[str]:
        """The value of `text_key`, if it is a text. One that is missing is counted, and any other is reported."""
        if value is None or (isinstance(value, float) and math.isnan(value)):  # pandas has NaN for a null
            self.problems.leave_null()
            return
        try:
            yield checked_text(value, self.text_key)
        except ValueError as error:
            self.problems.skip(where, str(error))


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
