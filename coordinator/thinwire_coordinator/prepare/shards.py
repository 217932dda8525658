"""Cuts sorted documents into shards, which are files named by their SHA-256."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.hall.ledger.creation import keep_blob
from thinwire_coordinator.prepare.held_out import Side, Split
from thinwire_coordinator.prepare.tokenizing import Encoded
from thinwire_proto.contract.data.prepared import File, Shard
from thinwire_proto.data.manifest import Source


class BlobWriter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def shard(self, data: bytes, tokens: int, text_bytes: int) -> Shard:
        """Write a shard. Raises OSError."""
        return Shard(**self.keep(data).model_dump(), tokens=tokens, text_bytes=text_bytes)

    def keep(self, data: bytes) -> File:
        """Write a blob. One that exists already is not written again. Raises OSError."""
        return File(**keep_blob(self._folder, data)._asdict())

    def keep_only(self, named: set[str]) -> None:
        """Delete files that no manifest names, left by runs that were interrupted and began again otherwise."""
        for path in self._folder.iterdir():
            if path.name not in named:
                path.unlink()


class ShardCutter:
    """Cuts one side of a source into shards of nearly equal size.

    total: size of the side. shard_tokens: largest shard.
    """

    def __init__(self, blobs: BlobWriter, total: Side, shard_tokens: int) -> None:
        self._blobs = blobs
        self._tokens = total.tokens
        self._count = -(-total.tokens // shard_tokens)
        self._parts: list[npt.NDArray[Any]] = []
        self._pending = 0
        self._position = 0
        self.shards: list[Shard] = []

    def add(self, document: Encoded) -> None:
        """Add the next document. Cuts inside it where a shard is full; its bytes of text are then divided alike."""
        tokens, position = document.tokens, 0
        text_before = 0
        while len(tokens) - position >= (room := self._room()):
            position += room
            text = document.text_bytes * position // len(document.tokens)
            self._take(tokens[position - room : position], text - text_before)
            text_before = text
            self._cut()
        self._take(tokens[position:], document.text_bytes - text_before)

    def finish(self) -> None:
        """Nothing is left: the last shard ends with the last token."""

    def _room(self) -> int:
        """Tokens that the present shard still takes: shard i ends at the share (i + 1) / count of all tokens."""
        number = len(self.shards) + 1
        return self._tokens * number // self._count - self._position if number <= self._count else 1 << 62

    def _take(self, tokens: npt.NDArray[Any], text_bytes: int) -> None:
        if len(tokens):
            self._parts.append(tokens)
        self._pending += text_bytes
        self._position += len(tokens)

    def _cut(self) -> None:
        tokens = np.concatenate(self._parts)
        self.shards.append(self._blobs.shard(tokens.tobytes(), len(tokens), self._pending))
        self._parts, self._pending = [], 0


class Cutter(Protocol):
    """Makes the shards of one side of a source."""

    shards: list[Shard]

    def add(self, document: Encoded) -> None:
        """Add the next document."""

    def finish(self) -> None:
        """Write what is left."""


def cut(
    name: str,
    documents: Iterable[Encoded],
    split: Split,
    train: Cutter,
    held_out: Cutter,
    elsewhere: Collection[bytes] = (),
) -> Source:
    """Cut the documents of a source, ordered by key. split: without what other sources hold out. elsewhere: the keys
    of that."""
    for number, document in enumerate(documents):
        if number < split.held_out.documents:
            held_out.add(document)
        elif document.key not in elsewhere:
            train.add(document)
    train.finish()
    held_out.finish()
    return Source(name=name, train=tuple(train.shards), held_out=tuple(held_out.shards))
