"""How long the messages of a peer take to arrive. No clock of its own.

The clocks of two machines differ by more than a message may take. So the time runs from the first part of a message,
which is small, to the last one, and stands for the bytes after the first part. The way of the first byte, half a round
trip, is not in it.
"""

from __future__ import annotations

from collections import deque

from thinwire_proto.gossip.seen_lines import MESSAGE_MS_MAX
from thinwire_proto.wire.parts import FIRST_PART_BYTES

SHORT_BYTES = 4 * FIRST_PART_BYTES
"""A message of fewer bytes arrives at once, as far as placing nodes is concerned."""
KEPT = 5
"""The newest times, of which the shortest counts: the others shared their sender's line."""


class MessageTimes:
    """The times of one line. now: seconds on a monotonic clock."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._first_bytes = 0
        self._newest: deque[float] = deque(maxlen=KEPT)

    def begin(self, first_bytes: int, now: float) -> None:
        """The first part of a message has come."""
        self._began_at, self._first_bytes = now, first_bytes

    def end(self, size_bytes: int, now: float) -> None:
        """A message is there."""
        if size_bytes < SHORT_BYTES:
            self._newest.append(0.0)
        elif size_bytes > self._first_bytes:  # an older node sends up to 1 MiB as one part
            self._newest.append((now - self._began_at) * size_bytes / (size_bytes - self._first_bytes))

    @property
    def milliseconds(self) -> int | None:
        """Of a message; None before the first one."""
        return min(MESSAGE_MS_MAX, round(1000 * min(self._newest))) if self._newest else None
