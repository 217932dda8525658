"""Files of tokens (`.bin`), as nanoGPT and llm.c write them.

nanoGPT writes uint16 tokens without a head. llm.c writes 256 int32 first: a magic number, a version and the number of
tokens. Both join documents by the tokenizer's end token: nanoGPT puts it after a document, llm.c before.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np

from thinwire_coordinator.prepare.readers.opening import BUFFER_BYTES, Content
from thinwire_coordinator.prepare.readers.port import Document, Reading, Tokens
from thinwire_proto.errors import ConfigError

HEAD_BYTES = 256 * 4
LLM_C = {(20240520, 1): "<u2", (20240801, 1): "<u4", (20240801, 7): "<u4"}
"""Magic number and version (dev/data/data_common.py of llm.c): tokens of GPT-2 and of Llama 3."""
MAGIC = frozenset(magic for magic, _ in LLM_C)
LLM_C_MAGICS = tuple(number.to_bytes(4, "little") for number in MAGIC)
PART_TOKENS = 1 << 16
"""A longer stretch without an end token is divided into documents of this many tokens."""


class _Head(NamedTuple):
    dtype: str
    tokens: int | None
    rest: bytes


def read_token_file(name: str, content: Content, reading: Reading) -> Iterator[Document]:
    """The documents of a file of tokens, without the end token. Raises ConfigError if a token is not in the vocabulary:
    the file then belongs to another tokenizer."""
    with io.BufferedReader(content, BUFFER_BYTES) as file:
        if (head := _head(name, file, reading)) is None:
            return
        pending, seen = np.zeros(0, np.uint32), 0
        for tokens in _tokens(name, file, head, reading):
            if (largest := int(tokens.max())) >= reading.vocabulary:
                position = seen + int(np.argmax(tokens))
                raise ConfigError(
                    f"{name}: token {position:,} is {largest}, but the tokenizer has only {reading.vocabulary:,}; "
                    "the file was made with another tokenizer"
                )
            seen += len(tokens)
            documents, pending = _split(np.concatenate([pending, tokens]), reading.end)
            yield from documents
        if len(pending):
            yield pending
        if head.tokens is not None and seen != head.tokens:
            reading.problems.skip(name, f"has {seen:,} tokens, but its head says {head.tokens:,}; it is truncated")


def _head(name: str, file: IO[bytes], reading: Reading) -> _Head | None:
    begin = file.read(HEAD_BYTES)
    numbers = np.frombuffer(begin[: len(begin) // 4 * 4], "<i4")
    if len(numbers) < 3 or int(numbers[0]) not in MAGIC:
        return _Head("<u2", None, begin)
    magic, version, tokens = (int(number) for number in numbers[:3])
    if (magic, version) not in LLM_C or len(begin) < HEAD_BYTES:
        reading.problems.skip(name, f"has the magic number {magic} of llm.c with the unknown version {version}")
        return None
    return _Head(LLM_C[magic, version], tokens, b"")


def _tokens(name: str, file: IO[bytes], head: _Head, reading: Reading) -> Iterator[Tokens]:
    """Pieces of at most PART_TOKENS. Half a token at the end is reported."""
    width = np.dtype(head.dtype).itemsize
    rest = head.rest
    while data := file.read(PART_TOKENS * width - len(rest)):
        rest += data
        whole = len(rest) // width * width
        if whole:
            yield np.frombuffer(rest[:whole], head.dtype).astype(np.uint32)
        rest = rest[whole:]
    whole = len(rest) // width * width
    if whole:
        yield np.frombuffer(rest[:whole], head.dtype).astype(np.uint32)
    if whole < len(rest) and head.tokens is None:
        reading.problems.skip(name, f"ends inside a token; it is truncated, or its tokens do not have {width} bytes")


def _split(tokens: Tokens, end: int | None) -> tuple[list[Tokens], Tokens]:
    """The documents before the last end token, and what follows it. What follows has less than PART_TOKENS."""
    ends = np.flatnonzero(tokens == end).tolist() if end is not None else []
    documents, begin = [], 0
    for stop in [*ends, None]:
        stretch = tokens[begin:stop]
        while len(stretch) > PART_TOKENS or (stop is None and len(stretch) == PART_TOKENS):
            documents.append(stretch[:PART_TOKENS])
            stretch = stretch[PART_TOKENS:]
        if stop is None:
            return documents, stretch
        if len(stretch):
            documents.append(stretch)
        begin = stop + 1
    raise AssertionError("the list of ends has its None")
