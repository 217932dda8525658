"""A message of one direction of an edge, and the public copies that take it: a node as an edge knows it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from thinwire_proto.errors import ConfigError, LocalError, PayloadError
from thinwire_proto.exact.apply import flush_subnormals
from thinwire_proto.exact.fingerprint import fingerprint
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import Codec, make_codec

FINGERPRINT_PARTS = 16
"""A message has the fingerprint of one part in turn, so a difference is found within so many messages."""


class PublicCopy:
    """A copy h. flat: float32 [layout.parameters]; sequence: the messages that it has taken."""

    def __init__(self, layout: TileLayout, start: Tensor) -> None:
        if start.dtype != torch.float32 or start.shape != (layout.parameters,):
            raise LocalError(f"a copy is float32 [{layout.parameters}]; this is {start.dtype} {list(start.shape)}")
        self.flat = start.detach().clone()
        self.sequence = 0
        flush_subnormals(self.flat)

    def advance(self, step: Tensor, *, is_whole: bool = False) -> None:
        """Take a message: add its step, or with is_whole begin at it. One rounded addition, the same everywhere."""
        if is_whole:
            self.flat.copy_(step)
        else:
            self.flat.add_(step)
            flush_subnormals(self.flat)
        self.sequence += 1

    def skip(self) -> None:
        """Take a message without a step."""
        self.sequence += 1

    def fingerprint(self) -> int:
        """The fingerprint of this sequence's part; see `thinwire_proto.exact.fingerprint`."""
        part, size = self.sequence % FINGERPRINT_PARTS, -(-len(self.flat) // FINGERPRINT_PARTS)
        values = self.flat[part * size : (part + 1) * size]
        return fingerprint([values], self.sequence)

    @classmethod
    def at(cls, layout: TileLayout, flat: Tensor, sequence: int) -> PublicCopy:
        """The copy after so many messages, as it was saved."""
        copy = cls(layout, flat)
        copy.sequence = sequence
        return copy

    def clone(self) -> PublicCopy:
        twin = object.__new__(PublicCopy)
        twin.flat, twin.sequence = self.flat.clone(), self.sequence
        return twin


SNAPSHOT = "snapshot"
"""In place of a codec's name: the body is the copy itself, as a difference from 0."""
SKIP = "skip"
"""In place of a codec's name: there is no body, and the sender has passed this turn without a message for it."""
CODECS_MAX = 16
"""Codecs that are kept ready. A peer may name another one in each message."""

When = tuple[int, int]
"""Topology and iteration: a turn, as both ends name it."""


@dataclass(frozen=True)
class Message:
    """A message of one direction of an edge.

    sequence: counts from 1. acknowledged: the last message of the other direction that has come in order. fingerprint:
    of a part of the copy after this message. wants_snapshot: the sender's copy of the receiver differs.
    """

    topology: int
    iteration: int
    sequence: int
    acknowledged: int
    codec: str
    fingerprint: int
    wants_snapshot: bool
    body: bytes

    @property
    def when(self) -> When:
        return self.topology, self.iteration

    def plain(self) -> tuple[Any, ...]:
        """The fields, in their order."""
        return tuple(_fields_of(self))


_fields_of = attrgetter(*(field.name for field in fields(Message)))


class Bodies:
    """Makes and reads the bodies of an edge's messages, with its codecs kept ready."""

    def __init__(self, layout: TileLayout) -> None:
        self.layout = layout
        self._codecs: dict[str, Codec] = {}

    def encode(self, codec: str, x: Tensor, copy: PublicCopy) -> bytes:
        """The body that brings the copy to x, but for what the codec drops. Raises LocalError if x is out of bounds."""
        return self._codec(codec).encode(x if codec == SNAPSHOT else x - copy.flat)

    def advance(self, copy: PublicCopy, codec: str, body: bytes) -> None:
        """Let a copy take a message. Raises PayloadError, and then changes nothing, for a body that cannot be read."""
        if codec == SKIP:
            if body:
                raise PayloadError("a message that skips turns has a body")
            copy.skip()
            return
        copy.advance(self._codec(codec).decode(body, copy.flat.device), is_whole=codec == SNAPSHOT)

    def _codec(self, name: str) -> Codec:
        """Raises PayloadError if there is no such codec."""
        if name not in self._codecs:
            try:
                made = make_codec("dense" if name == SNAPSHOT else name, self.layout)
            except ConfigError as error:
                raise PayloadError(str(error)) from None
            if len(self._codecs) >= CODECS_MAX:
                self._codecs.pop(next(iter(self._codecs)))
            self._codecs[name] = made
        return self._codecs[name]
