"""The port to the part that decides which identities may join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from thinwire_coordinator.hall.access.bans import Ban
from thinwire_coordinator.hall.access.refusals import Denied
from thinwire_proto.identity.keys import PublicKey


@dataclass(frozen=True)
class Candidate:
    """An identity that wants to join, and has proved to be what it claims.

    token: of its invite; empty if it has none. name: as it came, not cleaned. address: the host that it connects from.
    """

    public_key: PublicKey
    token: bytes = field(repr=False)
    name: str
    address: str


class Admits(Protocol):
    def admit(self, candidate: Candidate, now: float) -> Denied | None:
        """Enrol a candidate, or find it among the enrolled ones; or say why not. A worker calls this, so it may block.

        now: Unix time in seconds.
        """


class Bans(Protocol):
    def holding(self, now: float) -> Mapping[str, Ban]:
        """The bans that hold, by node id. A worker calls this. now: Unix time in seconds."""

    def pardoned_since(self, number: int) -> tuple[int, list[str]]:
        """The nodes that the organizer has pardoned after the decision with this number, and the newest number. A
        worker calls this."""
