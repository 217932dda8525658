"""The ways in which a pass over a batch ends early."""

from __future__ import annotations


class Interrupted(Exception):
    """The batch was aborted. Nothing of it was kept, unless `spoils`: then the sums hold a part of its gradient."""

    spoils = False


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
