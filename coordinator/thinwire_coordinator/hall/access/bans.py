"""The rules of bans: whether one holds, and the refusal that the banned node receives."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_common.units import human_seconds
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason

ORGANIZER, COORDINATOR = "organizer", "coordinator"
"""The authors of a decision."""


@dataclass(frozen=True)
class Ban:
    """The newest ban of a node. Times are Unix time in seconds.

    until: None means until the organizer lifts it. by: organizer or coordinator. count: bans that the node has had.
    """

    node: str
    since: float
    until: float | None
    reason: str
    by: str
    count: int

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until

    def denied(self, now: float) -> Denied:
        """The refusal that the node receives while the ban holds."""
        left = "until the organizer lifts it" if self.until is None else f"for {human_seconds(self.until - now)} more"
        why = f": {self.reason}" if self.reason else ""
        return Denied(DoorReason.BANNED, f"this node is banned {left}{why}")
