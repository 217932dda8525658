"""Fingerprints of the parameters that a contribution may use as its base.

Each fingerprint was computed with the nonce that the coordinator announced for that step.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFingerprint:
    """The fingerprint of the coordinator's own replica at one step, computed with this nonce."""

    nonce: int
    fingerprint: asyncio.Future[int]


class KnownFingerprints:
    """The fingerprints of the newest step and of the `age_max` steps before it."""

    def __init__(self, age_max: int) -> None:
        self._age_max = age_max
        self._by_step: dict[int, KnownFingerprint] = {}

    def know(self, step: int, nonce: int, fingerprint: asyncio.Future[int]) -> None:
        """Add the fingerprint of the newest step. A second round at the same step replaces nonce and fingerprint."""
        self._by_step[step] = KnownFingerprint(nonce, fingerprint)
        for old in [known for known in self._by_step if known < step - self._age_max]:
            del self._by_step[old]

    def forget(self) -> None:
        """Forget all: no earlier step is a base of what follows."""
        self._by_step.clear()

    def at(self, step: int) -> KnownFingerprint | None:
        return self._by_step.get(step)

    def nonces(self, step: int) -> list[int]:
        """The nonces of `step`, of the step before it, and so on, up to the first gap."""
        found = []
        while (base := self._by_step.get(step)) is not None:
            found.append(base.nonce)
            step -= 1
        return found
