"""Turns documents into tokens: as bytes, or with a `tokenizer.json`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.prepare.conversations import Rendered
from thinwire_coordinator.prepare.readers.port import Document, Tokens
from thinwire_proto.data.conversations import BEGINS, CHOSEN, COUNTS
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.errors import ConfigError

PIECE_CHARACTERS = 1 << 18
"""A longer document is tokenized in pieces, because the library needs some 40 bytes of memory a character."""
KEY_BYTES = 16


class Encoded(NamedTuple):
    """A document as tokens. key: the first bytes of the SHA-256 of its text. text_bytes: of its text in UTF-8, as far
    as it counts. marks: of a conversation, uint8 for each token (`thinwire_proto.data.conversations`)."""

    key: bytes
    text_bytes: int
    tokens: npt.NDArray[Any]
    marks: npt.NDArray[np.uint8] | None = None


class Encoder(Protocol):
    """Turns batches of documents into tokens.

    end: the token that ends a document. dtype: of a token in a shard.
    """

    vocabulary: int
    end: int | None
    dtype: np.dtype[Any]

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        """Each document with the end token after it; a conversation as its template ends it."""


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
        if isinstance(document, Rendered):
            return _conversation(document, self._of_chat)
        text = document.encode() if isinstance(document, str) else document.astype(np.uint8).tobytes()
        return Encoded(key_of(text), len(text), np.frombuffer(text, np.uint8))

    def _of_chat(self, document: Rendered) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        starts = np.cumsum([0, *(len(character.encode()) for character in document.text)])
        utf8 = np.frombuffer(document.text.encode(), np.uint8)
        counts = np.zeros(len(utf8), bool)
        for begin, end in document.counts:
            counts[starts[begin] : starts[end]] = True
        return utf8, counts


class JsonEncoder(Encoder):
    """Tokenizes with a `tokenizer.json`, whose library uses its own threads.

    read_special: text that spells a special token becomes that token. Without it, a document cannot spell its own end.
    In conversations it always does, as in transformers: templates write special tokens as text.
    """

    def __init__(self, files: TokenizerFiles, read_special: bool) -> None:
        tokenizer = JsonTokenizer(files.path, files.end)
        self.vocabulary = tokenizer.vocabulary
        self.end = files.end
        self.dtype = np.dtype("<u2" if self.vocabulary <= 1 << 16 else "<u4")
        self._library = tokenizer.library
        self._library.no_truncation()
        self._library.no_padding()
        self._read_special = read_special
        self._end = np.array([] if files.end is None else [files.end], self.dtype)

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        texts = [document for document in documents if isinstance(document, str)]
        of_text = self._of_text(texts)
        of_tokens = self._of_tokens([document for document in documents if isinstance(document, np.ndarray)])
        return [
            _conversation(one, self._of_chat)
            if isinstance(one, Rendered)
            else next(of_text if isinstance(one, str) else of_tokens)
            for one in documents
        ]

    def _of_text(self, texts: list[str]) -> Iterator[Encoded]:
        pieces = [list(_pieces(text)) for text in texts]
        joined = [piece for pieces_of_one in pieces for piece in pieces_of_one]
        self._library.encode_special_tokens = not self._read_special
        found = iter(self._library.encode_batch_fast(joined, add_special_tokens=False))
        for text, pieces_of_one in zip(texts, pieces, strict=True):
            yield self._encoded(text, [next(found).ids for _ in pieces_of_one])

    def _of_chat(self, conversation: Rendered) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        self._library.encode_special_tokens = False
        found = self._library.encode(conversation.text, add_special_tokens=False)
        before = np.zeros(len(conversation.text) + 1, np.int64)  # characters that count before each
        for begin, end in conversation.counts:
            before[begin + 1 : end + 1] = 1
        before = before.cumsum()
        ends = np.array(found.offsets, np.int64).reshape(-1, 2)
        return np.array(found.ids, self.dtype), before[ends[:, 1]] > before[ends[:, 0]]

    def _of_tokens(self, documents: list[Tokens]) -> Iterator[Encoded]:
        """Documents that are tokens already. Their text is needed for its hash and its length."""
        texts = self._library.decode_batch([tokens.tolist() for tokens in documents], skip_special_tokens=False)
        for text, tokens in zip(texts, documents, strict=True):
            yield self._encoded(text, [tokens])

    def _encoded(self, text: str, parts: Sequence[Any]) -> Encoded:
        tokens = np.concatenate([*(np.array(part, self.dtype) for part in parts), self._end])
        utf8 = text.encode()
        return Encoded(key_of(utf8), len(utf8), tokens)


def _conversation(
    rendered: Rendered, tokens_of: Callable[[Rendered], tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]]
) -> Encoded:
    """A conversation as tokens, or both of a preference. tokens_of: those of one, and which of them count."""
    tokens, counts = tokens_of(rendered)
    marks = counts.astype(np.uint8) * COUNTS
    marks[:1] = BEGINS
    text_bytes = sum(len(rendered.text[begin:end].encode()) for begin, end in rendered.counts)
    if rendered.rejected is not None:
        other = _conversation(rendered.rejected, tokens_of)
        assert other.marks is not None
        marks[:1] |= CHOSEN
        tokens, marks = np.concatenate([tokens, other.tokens]), np.concatenate([marks, other.marks])
        text_bytes += other.text_bytes
    return Encoded(key_of(rendered.whole.encode()), text_bytes, tokens, marks)


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
