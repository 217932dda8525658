"""Turns documents into tokens: as bytes, or with a `tokenizer.json`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.prepare.readers.port import Document, Tokens
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.errors import ConfigError

PIECE_CHARACTERS = 1 << 18
"""A longer document is tokenized in pieces, because the library needs some 40 bytes of memory a character."""
KEY_BYTES = 16


class Encoded(NamedTuple):
    """A document as tokens. key: the first bytes of the SHA-256 of its text. text_bytes: of its text in UTF-8."""

    key: bytes
    text_bytes: int
    tokens: npt.NDArray[Any]


class Encoder(Protocol):
    """Turns batches of documents into tokens.

    end: the token that ends a document. dtype: of a token in a shard.
    """

    vocabulary: int
    end: int | None
    dtype: np.dtype[Any]

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        """Each document with the end token after it."""


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer to prepare with. path: its `tokenizer.json`. end: the token that ends a document. files: other files,
    by name, that are handed on with it."""

    path: Path
    end: int | None
    files: dict[str, bytes] = field(default_factory=dict)


class ByteEncoder(Encoder):
    """Token i is the byte i. Nothing marks the end of a document."""

    vocabulary = 256
    end = None
    dtype = np.dtype("<u1")

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        return [self._encoded(document) for document in documents]

    def _encoded(self, document: Document) -> Encoded:
        text = document.encode() if isinstance(document, str) else document.astype(np.uint8).tobytes()
        return Encoded(key_of(text), len(text), np.frombuffer(text, np.uint8))


class JsonEncoder(Encoder):
    """Tokenizes with a `tokenizer.json`, whose library uses its own threads.

    read_special: text that spells a special token becomes that token. Without it, a document cannot spell its own end.
    """

    def __init__(self, files: TokenizerFiles, read_special: bool) -> None:
        tokenizer = JsonTokenizer(files.path, files.end)
        self.vocabulary = tokenizer.vocabulary
        self.end = files.end
        self.dtype = np.dtype("<u2" if self.vocabulary <= 1 << 16 else "<u4")
        self._library = tokenizer.library
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = not read_special
        self._end = np.array([] if files.end is None else [files.end], self.dtype)

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        texts = [document for document in documents if isinstance(document, str)]
        of_text = self._of_text(texts)
        of_tokens = self._of_tokens([document for document in documents if not isinstance(document, str)])
        return [next(of_text if isinstance(document, str) else of_tokens) for document in documents]

    def _of_text(self, texts: list[str]) -> Iterator[Encoded]:
        pieces = [list(_pieces(text)) for text in texts]
        joined = [piece for pieces_of_one in pieces for piece in pieces_of_one]
        found = iter(self._library.encode_batch_fast(joined, add_special_tokens=False))
        for text, pieces_of_one in zip(texts, pieces, strict=True):
            yield self._encoded(text, [next(found).ids for _ in pieces_of_one])

    def _of_tokens(self, documents: list[Tokens]) -> Iterator[Encoded]:
        """Documents that are tokens already. Their text is needed for its hash and its length."""
        texts = self._library.decode_batch([tokens.tolist() for tokens in documents], skip_special_tokens=False)
        for text, tokens in zip(texts, documents, strict=True):
            yield self._encoded(text, [tokens])

    def _encoded(self, text: str, parts: Sequence[Any]) -> Encoded:
        tokens = np.concatenate([*(np.array(part, self.dtype) for part in parts), self._end])
        utf8 = text.encode()
        return Encoded(key_of(utf8), len(utf8), tokens)


def limit_threads(threads: int) -> None:
    """Set how many threads the library `tokenizers` uses. Works only before its first use in this process."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"


def check_end(word: str, files: TokenizerFiles) -> TokenizerFiles:
    """The tokenizer with `word` as its end token. Raises ConfigError if it has no such token."""
    number = JsonTokenizer(files.path, None).library.token_to_id(word)
    if number is None:
        raise ConfigError(f"{files.path}: has no token {word!r}; --end-token names the token that ends a document")
    return TokenizerFiles(files.path, number, files.files)


def key_of(utf8: bytes) -> bytes:
    """The key of a document with this text."""
    return hashlib.sha256(utf8).digest()[:KEY_BYTES]


def _pieces(text: str) -> Iterator[str]:
    """Divide a long text after a line; without one, before a space."""
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS:
        limit = begin + PIECE_CHARACTERS
        cut = text.rfind("\n", begin, limit) + 1 or text.rfind(" ", begin + 1, limit)
        cut = cut if cut > begin else limit
        yield text[begin:cut]
        begin = cut
    yield text[begin:]
