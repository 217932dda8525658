"""The coordinator's state about nodes in memory: members, leases, known fingerprints, counts and event watchers."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import Events
from thinwire_coordinator.hall.leases import Leases
from thinwire_coordinator.hall.members import Members
from thinwire_coordinator.star.fingerprints import KnownFingerprints


@dataclass
class Registry:
    members: Members
    leases: Leases
    fingerprints: KnownFingerprints
    counts: Counts
    events: Events
    began: float = 0.0
    """When this process began, on the coordinator's clock."""
    sealed_at: float = 0.0
    """When the newest step was sealed, on the coordinator's clock; before the first one, when this process began."""
    measured_step: int = 0
    """The newest step whose held-out loss was measured, finite or not."""
