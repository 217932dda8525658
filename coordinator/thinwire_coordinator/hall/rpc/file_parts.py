"""How large the parts of a file are: small on a thin line, where a node sees nothing of a part before all of it came.

A node gives up a source that shows it too little for FETCH_SILENT_S, for which parts of 256 KiB need 210 kbit/s. And an
answer to its heartbeat waits behind what is under way.
"""

from __future__ import annotations

FILE_PART_BYTES = 256 << 10
"""The largest."""
LEAST_BYTES = 16 << 10
QUICK_PARTS = 8
"""Parts grow after so many that a line took quickly: any line takes as many bytes at once as its windows hold."""
QUICK_S, SLOW_S = 0.25, 1.0


class PartSizes:
    """The size of the next part of a file for one node, in bytes."""

    def __init__(self) -> None:
        self.bytes = LEAST_BYTES
        self._quick = 0

    def took(self, seconds: float) -> None:
        """The line was ready for another part so long after the last one."""
        self._quick = self._quick + 1 if seconds < QUICK_S else 0
        if self._quick == QUICK_PARTS:
            self.bytes, self._quick = min(2 * self.bytes, FILE_PART_BYTES), 0
        elif seconds > SLOW_S:
            self.bytes = max(self.bytes // 2, LEAST_BYTES)
