"""Packs conversations into rows of equal length, and the rows into shards.

Documents come in a random order, so a simple rule fills rows well: each conversation goes into the open row with the
least room that is enough (best fit). A bounded number of rows is open, so memory does not grow with the data.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, NamedTuple

import numpy as np

from thinwire_coordinator.prepare.shards import BlobWriter
from thinwire_coordinator.prepare.tokenizing import Encoded
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.conversations import BEGINS, COUNTS
from thinwire_proto.data.token_shards import row_type

OPEN_ROWS_MAX = 256


class Packed(NamedTuple):
    """The outcome for one side of a source. conversations: or preferences. too_long, uncounted: those left out,
    because they are longer than a row, or because no token of a conversation counts."""

    conversations: int = 0
    rows: int = 0
    tokens: int = 0
    counted: int = 0
    too_long: int = 0
    uncounted: int = 0

    def plus(self, other: Packed) -> Packed:
        return Packed(*(one + more for one, more in zip(self, other, strict=True)))


class RowPacker:
    """Packs one side of a source.

    context: tokens that a row predicts. packed: whether conversations share rows. padding: the token at the end of
    rows.
    """

    def __init__(
        self, blobs: BlobWriter, dtype: np.dtype[Any], context: int, shard_bytes: int, padding: int, *, packed: bool
    ) -> None:
        self._blobs = blobs
        self._type = row_type(context, dtype)
        self._length = context + 1
        self._rows_max = max(1, shard_bytes // self._type.itemsize)
        self._padding = padding
        self._open_max = OPEN_ROWS_MAX if packed else 0
        self._open: list[tuple[int, int, list[Encoded]]] = []  # room, a number that no other has, conversations
        self._number = 0
        self._full: list[list[Encoded]] = []
        self.shards: list[Shard] = []
        self.packed = Packed()

    def add(self, document: Encoded) -> None:
        """Add the next conversation, or the two of a preference, or count why they are left out."""
        assert document.marks is not None
        size, begins = len(document.tokens), np.flatnonzero(document.marks & BEGINS)
        counts = np.add.reduceat((document.marks & COUNTS).astype(np.int64), begins) if size else np.zeros(1)
        if size > self._length or not counts.all():
            self.packed = self.packed.plus(
                Packed(too_long=int(size > self._length), uncounted=int(size <= self._length))
            )
            return
        self.packed = self.packed.plus(Packed(1, 0, size, int(counts.sum())))
        place = bisect_left(self._open, (size,))
        room, number, row = self._open.pop(place) if place < len(self._open) else (self._length, self._number, [])
        self._number += not row
        row.append(document)
        insort(self._open, (room - size, number, row))
        if len(self._open) > self._open_max:
            self._close()  # that with the least room

    def finish(self) -> None:
        """Write the rows that are left."""
        while self._open:
            self._close()
        if self._full:
            self._write()

    def _close(self) -> None:
        self._full.append(self._open.pop(0)[2])
        if len(self._full) == self._rows_max:
            self._write()

    def _write(self) -> None:
        rows = np.zeros(len(self._full), self._type)
        rows["tokens"] = self._padding
        counted = text_bytes = 0
        for row, conversations in zip(rows, self._full, strict=True):
            at = 0
            for document in conversations:
                end = at + len(document.tokens)
                row["tokens"][at:end], row["marks"][at:end] = document.tokens, document.marks
                text_bytes, at = text_bytes + document.text_bytes, end
            if at < self._length:
                row["marks"][at] = BEGINS
            counted += int((row["marks"] & COUNTS).sum())
        file = self._blobs.keep(rows.tobytes())
        tokens = len(rows) * self._length
        self.shards.append(Shard(**file.model_dump(), tokens=tokens, text_bytes=text_bytes, counted=counted))
        self.packed = self.packed.plus(Packed(rows=len(rows)))
        self._full = []
