"""The ways in which a pass over a batch ends early."""

from __future__ import annotations


class Interrupted(Exception):
    """The batch was aborted. Nothing of it was kept, but that the sums of the tensors in `added` hold its gradient too,
    times `weight`. spoils: sums hold a part of it, and nobody knows which."""

    spoils = False
    added: frozenset[str] = frozenset()
    weight = 0


class NotFinite(Exception):
    """The loss or the gradient of a batch is not finite. spoils: sums hold a part of the gradient."""

    def __init__(self, *, spoils: bool = False) -> None:
        super().__init__()
        self.spoils = spoils


class OutOfMemory(Exception):
    """A pass has run out of memory. added: names of the tensors whose gradients are in the sums already."""

    def __init__(self, reason: str, added: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.added = added
