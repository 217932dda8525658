"""The interface of readers: what they are given, and what they make."""

from __future__ import annotations

import math
from collections.abc import Callable
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

    def text_of(self, value: object) -> str | None:
        """The value of `text_key` as the text of a document; None if it is a null, which is counted. Raises ValueError,
        which says what is wrong."""
        if value is None or (isinstance(value, float) and math.isnan(value)):  # pandas has NaN for a null
            self.problems.leave_null()
            return None
        if not isinstance(value, str):
            raise ValueError(f"{self.text_key!r} is not text but {type(value).__name__}")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise ValueError(f"{self.text_key!r} has half a character (a lone surrogate)") from None
        if size > DOCUMENT_BYTES_MAX:
            raise ValueError(f"{self.text_key!r} is longer than {DOCUMENT_BYTES_MAX:,} bytes")
        return value
