"""A public copy: the parameters of a node as an edge knows them."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire_proto.errors import LocalError
from thinwire_proto.exact.apply import flush_subnormals
from thinwire_proto.exact.fingerprint import fingerprint
from thinwire_proto.exact.tiles import TileLayout

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
