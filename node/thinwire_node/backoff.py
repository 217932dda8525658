"""The pauses between a node's attempts to reach its coordinator, or a peer.

Each pause is twice as long as the one before, up to a longest one. Progress resets it to the first. Pure: the caller
passes times in and does the waiting.
"""

from __future__ import annotations

import random

from thinwire_proto.limits import BACKOFF_FIRST_S, BACKOFF_MAX_S

BACKOFF_JITTER = 0.2
"""Pauses vary by this fraction, so that a thousand nodes do not reconnect at the same moment."""


class Backoff:
    """The next pause. patience_s: the longest time without a coordinator; None: no limit. first_s, max_s: the first and
    the longest pause."""

    def __init__(
        self,
        patience_s: float | None,
        randomness: random.Random,
        first_s: float = BACKOFF_FIRST_S,
        max_s: float = BACKOFF_MAX_S,
    ) -> None:
        self._patience_s = patience_s
        self._random = randomness
        self._first_s = first_s
        self.max_s = max_s
        self.pause_s = first_s
        """The next pause before jitter, in seconds."""

    def is_exhausted(self, alone_s: float) -> bool:
        """Whether the next pause would exceed the patience, after `alone_s` seconds without a coordinator."""
        return self._patience_s is not None and alone_s + self.pause_s > self._patience_s

    def jittered_s(self, pause_s: float | None = None) -> float:
        """A pause with jitter, in seconds; by default the next one."""
        return (self.pause_s if pause_s is None else pause_s) * self._random.uniform(
            1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER
        )

    def lengthen(self) -> None:
        self.pause_s = min(2 * self.pause_s, self.max_s)

    def reset(self) -> None:
        self.pause_s = self._first_s
