"""The port to what keeps standings over restarts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from thinwire_coordinator.star.trust.evidence import Decision
from thinwire_coordinator.star.trust.standing import Standing


class TrustStore(Protocol):
    """Keeps what is known about nodes. All calls return at once."""

    def load(self) -> Iterable[Standing]:
        """All standings that were saved."""

    def save(self, standings: Iterable[Standing], decisions: Iterable[Decision]) -> None:
        """Save standings that have changed, and the decisions that changed them."""


class NothingKept:
    """Keeps nothing, for simulations and benchmarks."""

    def load(self) -> Iterable[Standing]:
        return ()

    def save(self, standings: Iterable[Standing], decisions: Iterable[Decision]) -> None:
        pass
