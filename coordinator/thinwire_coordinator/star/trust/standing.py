"""The standing of one node: the evidence so far, its suspicions and bans, and the weight that it has earned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from thinwire_coordinator.hall.events import Cause
from thinwire_coordinator.star.trust.sequential import ALARM, MAY_BAN, added

BAN_S = 15.0
BAN_S_MAX = 86_400.0
"""The n-th ban of a node lasts BAN_S · 2ⁿ seconds, n from 0, and at most this."""
FORGIVEN_AFTER = 500
"""Each time that a node has this many more counted rounds, its next ban is half as long."""
VOUCHED = -math.log(1e-2)
"""S of the audits from which on they vouch for a node: honest audits are then 100 times as likely as hostile ones."""
NOT_SEEN = -(1 << 62)
"""The newest round of a node that has not been here since this process began."""


@dataclass
class Standing:
    """One node. group: of its address; empty if it has none. counted: counted rounds since it was last suspected.
    founder: whether it came before any node had its full weight. was_suspected: whether it ever had a suspicion.
    evidence: S of each test, see `sequential`. vouched: S of the audits in the node's favour. suspected: why its votes
    are not merged, in words, by cause. banned_until: in seconds on the caller's clock. seen: newest round in which it
    was here.
    """

    node: str
    group: str = ""
    counted: int = 0
    founder: bool = False
    was_suspected: bool = False
    evidence: dict[Cause, float] = field(default_factory=dict)
    vouched: float = 0.0
    audits: int = 0
    suspected: dict[Cause, str] = field(default_factory=dict)
    bans: int = 0
    banned_until: float = -math.inf
    pardoned: int = 0
    """Decisions about this node that the organizer has overruled."""
    seen: int = NOT_SEEN

    def add(self, cause: Cause, step: float) -> None:
        found = added(self.evidence.get(cause, 0.0), step)
        self.evidence.pop(cause, None)
        if found:
            self.evidence[cause] = found

    def alarmed(self, cause: Cause) -> bool:
        """Whether the evidence for a cause suffices to suspect the node. An audit may vouch for one with other data."""
        vouched = cause is Cause.NOISE and self.vouched >= VOUCHED
        return self.evidence.get(cause, 0.0) >= ALARM and not vouched

    def suspect(self, cause: Cause, reason: str) -> None:
        """Stop merging its votes. It loses what it has earned. For silence and for wrong held-out losses that is all:
        its votes may be good."""
        self.counted = 0
        if cause in (Cause.SILENCE, Cause.HELD_OUT):
            self.evidence.pop(cause)
        else:
            self.suspected[cause] = reason
            self.was_suspected = True

    def is_cleared(self, cause: Cause) -> bool:
        """Whether a suspicion is over."""
        return not self.evidence.get(cause) or (cause is Cause.NOISE and self.vouched >= VOUCHED)

    def count(self) -> None:
        """Add a counted round."""
        self.counted += 1
        if self.counted % FORGIVEN_AFTER == 0:
            self.bans = max(0, self.bans - 1)

    def bannable(self, cause: Cause) -> bool:
        return cause in MAY_BAN and self.evidence.get(cause, 0.0) >= 2 * ALARM

    def ban(self, now: float) -> float:
        """Ban the node, and return for how many seconds. It comes back suspected, as far from the next ban as now."""
        length_s = min(BAN_S * 2.0 ** min(self.bans, 32), BAN_S_MAX)
        self.bans += 1
        self.banned_until = now + length_s
        for cause in self.suspected:
            self.evidence[cause] = min(self.evidence.get(cause, 0.0), ALARM)
        return length_s

    def pardon(self) -> None:
        """Forget everything against the node."""
        self.evidence.clear()
        self.suspected.clear()
        self.bans = 0
        self.banned_until = -math.inf
        self.pardoned += 1

    @property
    def counts_as_founder(self) -> bool:
        return self.founder and not self.was_suspected

    @property
    def why(self) -> str:
        """The reason for which its votes are not merged, in words; empty if they are."""
        return "; ".join(self.suspected.values())

    def plain(self) -> dict[str, Any]:
        """Return the values that are kept over a restart, as numbers and strings."""
        found: dict[str, Any] = _ADAPTER.dump_python(self, mode="json", exclude=_OF_THIS_PROCESS)
        return found

    @classmethod
    def from_plain(cls, node: str, plain: dict[str, Any]) -> Standing:
        """The standing of a node in an earlier process. Raises ValidationError if it cannot be read."""
        return _ADAPTER.validate_python(plain | {"node": node})


_ADAPTER = TypeAdapter(Standing)
_OF_THIS_PROCESS = {"node", "group", "banned_until", "seen"}
