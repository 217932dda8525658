"""What the coordinator keeps about nodes while it lives: who is here, what each may train on, what each may stand
on, and what was counted."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.bases import Bases
from thinwire_coordinator.leases import Leases
from thinwire_coordinator.members import Members


@dataclass
class Tally:
    """Counts since this process started."""

    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_fetched: int = 0
    fingerprints_compared: int = 0
    fingerprints_different: int = 0
    loss_training: float | None = None


@dataclass
class Books:
    members: Members
    leases: Leases
    bases: Bases
    tally: Tally
