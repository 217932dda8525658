"""What the coordinator knows of the parameters that a contribution may stand on: their fingerprints, each under the
nonce that nodes were told for that step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFingerprint:
    nonce: int
    fingerprint: asyncio.Future[int]  # of the coordinator's own replica


class KnownFingerprints:
    """Those of the newest step, and of `age_max` steps before it."""

    def __init__(self, age_max: int) -> None:
        self._age_max = age_max
        self._by_step: dict[int, KnownFingerprint] = {}

    def know(self, step: int, nonce: int, fingerprint: asyncio.Future[int]) -> None:
        """The newest step's; a second round on the same step has a nonce of its own."""
        self._by_step[step] = KnownFingerprint(nonce, fingerprint)
        for old in [known for known in self._by_step if known < step - self._age_max]:
            del self._by_step[old]

    def at(self, step: int) -> KnownFingerprint | None:
        return self._by_step.get(step)

    def nonces(self, step: int) -> list[int]:
        """Of `step`, of the step before, and so on, as far back as they are known without a gap."""
        found = []
        while (base := self._by_step.get(step)) is not None:
            found.append(base.nonce)
            step -= 1
        return found
