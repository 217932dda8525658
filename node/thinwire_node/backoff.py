"""The pauses between a node's attempts to reach its coordinator.

Each pause is twice as long as the one before, up to BACKOFF_MAX_S. Progress resets it to BACKOFF_FIRST_S. Pure: the
caller passes times in and does the waiting.
"""

from __future__ import annotations

import random

from thinwire_proto.limits import BACKOFF_FIRST_S, BACKOFF_MAX_S

BACKOFF_JITTER = 0.2
"""Pauses vary by this fraction, so that a thousand nodes do not reconnect at the same moment."""


class Backoff:
    """The next pause. patience_s: the longest time without a coordinator; None: no limit."""

    def __init__(self, patience_s: float | None, randomness: random.Random) -> None:
        self._patience_s = patience_s
        self._random = randomness
        self.pause_s = BACKOFF_FIRST_S
        """The next pause before jitter, in seconds."""

    def is_exhausted(self, alone_s: float) -> bool:
        """Whether the next pause would exceed the patience, after `alone_s` seconds without a coordinator."""
        return self._patience_s is not None and alone_s + self.pause_s > self._patience_s

    def jittered_s(self) -> float:
        """The next pause with jitter, in seconds."""
        return self.pause_s * self._random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)

    def lengthen(self) -> None:
        """Double the pause: the last attempt failed."""
        self.pause_s = min(2 * self.pause_s, BACKOFF_MAX_S)

    def reset(self) -> None:
        """Start again with the first pause: the last session made progress."""
        self.pause_s = BACKOFF_FIRST_S
