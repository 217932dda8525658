"""Decides which documents are held out: those with the smallest keys, so that order and place do not matter.

Copies of a document have the same key, so they are on the same side. Between sources this holds for the share that
each of them holds out. A small source holds out more; another source that has these documents does not train on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import dropwhile, groupby, islice, takewhile
from typing import NamedTuple

import numpy as np

from thinwire_coordinator.prepare.tokenizing import Encoded
from thinwire_proto.data.conversations import CHOSEN
from thinwire_proto.errors import ConfigError

KEY_NUMBERS = 1 << 64
"""A share is compared with the first 8 bytes of a key."""
TOKENS_MIN = 1 << 15
"""A small source holds out more than its share, up to so many tokens …"""
SMALL_SHARE_MAX = 0.1
"""… but no more than this share of its tokens."""


class Side(NamedTuple):
    """The size of one side of a source: of what is trained on, or of what is held out. text_bytes: of the text that
    counts. conversations: how many of the documents are conversations, or preferences. preferences: how many are."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    conversations: int = 0
    preferences: int = 0

    def plus(self, other: Side) -> Side:
        return Side(*(one + more for one, more in zip(self, other, strict=True)))

    def minus(self, other: Side) -> Side:
        return Side(*(one - less for one, less in zip(self, other, strict=True)))


class Split(NamedTuple):
    """The division of a source. The held-out documents come first in the order of keys."""

    train: Side
    held_out: Side


def is_held_out(key: bytes, share: float) -> bool:
    """Whether the share of documents that is held out includes this key."""
    return int.from_bytes(key[:8], "big") < round(share * KEY_NUMBERS)


def side_of(document: Encoded) -> Side:
    marks = document.marks
    preferences = marks is not None and np.count_nonzero(marks & CHOSEN)
    return Side(1, len(document.tokens), document.text_bytes, int(marks is not None), int(preferences))


def split(name: str, documents: Iterable[Encoded], total: Side, share: float) -> Split:
    """Hold out a share of the documents of a source: at least one, and, as far as a tenth of the source allows, enough
    to measure a loss on. At least one is left to train on.

    documents: ordered by key; only those that are held out are read. total: of all of them. Raises ConfigError.
    """
    if not total.documents:
        raise ConfigError(f"source {name}: has no documents")
    held_out = Side()
    for key, copies in groupby(documents if share else (), key=lambda document: document.key):
        more = held_out
        for document in copies:
            more = more.plus(side_of(document))
        enough = held_out.tokens >= TOKENS_MIN or more.tokens > total.tokens * SMALL_SHARE_MAX
        if more.documents == total.documents or (held_out.documents and enough and not is_held_out(key, share)):
            break
        held_out = more
    if share and not held_out.documents:
        raise ConfigError(
            f"source {name}: has only one document, or copies of one, so none can be held out; add text, or say "
            f"--held-out 0 and measure the held-out loss on another source"
        )
    return Split(total.minus(held_out), held_out)


def beyond_share(documents: Iterable[Encoded], halves: Split, share: float) -> Iterator[bytes]:
    """The keys of what a small source holds out beyond its share. Few: these are at most TOKENS_MIN tokens.

    documents: those of the source, ordered by key.
    """
    held_out = (document.key for document in islice(documents, halves.held_out.documents))
    return (key for key, _ in groupby(dropwhile(lambda key: is_held_out(key, share), held_out)))


def left_out(name: str, documents: Iterable[Encoded], halves: Split, elsewhere: Collection[bytes]) -> Side:
    """What a source does not train on because other sources hold it out. Raises ConfigError if nothing is left.

    documents: those of the source, ordered by key. elsewhere: keys of what the others hold out beyond their share.
    """
    if not elsewhere:
        return Side()
    last, found = max(elsewhere), Side()
    trained = islice(documents, halves.held_out.documents, None)
    for document in takewhile(lambda document: document.key <= last, trained):
        if document.key in elsewhere:
            found = found.plus(side_of(document))
    if found.documents == halves.train.documents:
        raise ConfigError(
            f"source {name}: other sources hold out all that it would train on; give these documents to one source, or "
            "say --held-out 0 and measure the held-out loss on another source"
        )
    return found
