"""Finds out whether a node's line is too thin for gRPC's usual windows, by how its connections end."""

from __future__ import annotations

PING_UNANSWERED = "ping timeout"
"""gRPC's words for the end of a connection whose ping was not answered in time."""
CONNECTION_CUT = "Connection reset by peer"
"""And for one that the other end has ended."""
LOST_ON_A_THIN_LINE = 2


class ThinLine:
    """Fetching may have filled the line, so that a ping was not answered in time: the node's own, or after several such
    ends, perhaps the coordinator's, which then cuts the connection. So does a restart, but hardly twice."""

    def __init__(self) -> None:
        self.is_fetching = False
        """Whether the node joins, or fetches data or parameters."""
        self._lost = 0

    @property
    def is_thin(self) -> bool:
        return self._lost >= LOST_ON_A_THIN_LINE

    def lost(self, why: str) -> None:
        """A connection has ended."""
        if self.is_fetching and PING_UNANSWERED in why:
            self._lost = LOST_ON_A_THIN_LINE
        elif self.is_fetching and CONNECTION_CUT in why:
            self._lost += 1
