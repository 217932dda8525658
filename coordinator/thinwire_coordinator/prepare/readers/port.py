"""The interface of a reader."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import zstandard

from thinwire_coordinator.prepare.problems import Problems
from thinwire_coordinator.prepare.sources import SourceFile

DOCUMENT_BYTES_MAX = 1 << 26
"""Longest document, in bytes of UTF-8."""
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


class Reader(Protocol):
    def __call__(self, file: SourceFile, reading: Reading) -> Iterator[Document]:
        """The documents of a file. Reports what it skips to `reading.problems`.

        Raises what the file system raises if the file cannot be reached, and one of DAMAGE if the rest of the file
        cannot be read.
        """


DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
"""Errors of decompression on a damaged or truncated file, besides an OSError without a number."""


def is_damage(error: Exception) -> bool:
    """Whether the contents of a file are at fault, and not the disk or the network."""
    return isinstance(error, DAMAGE) or (isinstance(error, OSError) and error.errno is None and _is_plain(error))


def _is_plain(error: OSError) -> bool:
    """gzip.BadGzipFile and pyarrow's OSError count; a ConnectionError or a TimeoutError does not."""
    return not isinstance(error, (ConnectionError, TimeoutError))
