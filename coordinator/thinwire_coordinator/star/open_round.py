"""The open round with the parts that need the event loop: the merger of its votes, the receipts awaited, and the
fingerprints of its bases."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from thinwire_common.within import Within
from thinwire_coordinator.star.round.announcements import Receipt
from thinwire_coordinator.star.round.contributions import Contribution, Round
from thinwire_proto.exact.votes import Merges
from thinwire_proto.limits import READ_GRACE_S


@dataclass
class OpenRound:
    """A `Round` with its merger and its receipts. is_closed: whether all receipts are given. readings: the limits of
    what is being read for it."""

    round: Round
    merger: Merges
    is_closed: bool = False
    readings: set[Within] = field(default_factory=set)
    _receipts: dict[bytes, asyncio.Future[Receipt]] = field(default_factory=dict)

    def arrived(self, contribution: Contribution, name: bytes, arrived_us: int) -> None:
        """Record that a contribution is complete. Its receipt can be awaited from now on."""
        self.round.arrived(contribution, name, arrived_us)
        self._receipts[name] = asyncio.get_running_loop().create_future()

    def receipt(self, name: bytes) -> asyncio.Future[Receipt] | None:
        """The receipt of a complete contribution. Shield it, because several callers may await it."""
        return self._receipts.get(name)

    def refuse(self, contribution: Contribution, receipt: Receipt) -> None:
        """Answer a contribution that failed its check."""
        self.round.refuse(contribution)
        self._answer(contribution, receipt)

    def close(self, receipt: Receipt) -> None:
        """End the round: give this receipt to every accepted contribution. One that is still being read READ_GRACE_S
        later is late, even if the round has ended long before its deadline."""
        self.is_closed = True
        for reading in self.readings:
            asyncio.get_running_loop().call_later(READ_GRACE_S, reading.end)
        for contribution in self.round.accepted:
            self.round.over(contribution)
            self._answer(contribution, receipt)

    def _answer(self, contribution: Contribution, receipt: Receipt) -> None:
        self._receipts[contribution.name].set_result(replace(receipt, arrived_us=contribution.arrived_us))


@dataclass(frozen=True)
class KnownFingerprint:
    """The fingerprint of the coordinator's own replica at one step, which a contribution may use as its base. nonce: as
    announced for that step."""

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
