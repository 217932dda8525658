"""The nodes of a gossip run, as the directory knows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Heard:
    """A report, as far as it changes the directory.

    topology: the newest that the node has; 0 for none. iteration: how many it has finished. missed: members for which
    it has waited in vain. address: where others reach it; empty if it does not listen. public_key: Ed25519, 32 bytes.
    is_genesis: whether it has mixed nothing, as the head of its chain says.
    """

    node: str
    topology: int
    iteration: int
    missed: Collection[int] = ()
    address: str = ""
    public_key: bytes = b""
    is_genesis: bool = True


@dataclass
class Participant:
    """One node. member: its number, which is given once in a run.

    is_present: whether it takes part, as far as its reports tell. trained_through: the last position of its lease that
    it has reported. pace: iterations a second, from two reports at least half a beat apart; None before. enters_at: the
    start of its first topology, if it begins with a peer's parameters and has not yet. marked_iteration, marked_at: the
    earlier of the two reports. rests_until: it is left out of topologies until then, and until it reports again,
    because its peers missed it at `missed_at`, and `times_missed` times so far. missed_by: the newest peers that missed
    it. is_restored: it has not reported since this coordinator began, so its peers may only be back before it.
    placed_at: a node that has this topology, or a newer one, knows its address. computing_s: of an iteration, from its
    newest report; None before. since: it is present, or in its first topology.
    """

    node: str
    member: int
    is_present: bool = True
    iteration: int = 0
    address: str = ""
    public_key: bytes = b""
    trained_through: int | None = None
    pace: float | None = None
    enters_at: int | None = None
    heard_at: float | None = None
    marked_iteration: int = 0
    marked_at: float = 0.0
    rests_until: float = 0.0
    missed_at: float | None = None
    times_missed: int = 0
    missed_by: list[int] = field(default_factory=list)
    is_restored: bool = False
    placed_at: int = 0
    computing_s: float | None = None
    since: float = 0.0

    def plain(self) -> list[Any]:
        """The fields that outlive the process. Times do not: its clock begins anew. Nor does the address, which is in
        the next report: these fields are in the ledger's file, which an organizer may hand on."""
        place = [self.node, self.member, self.is_present, self.iteration, "", self.public_key]
        return [*place, self.trained_through, self.pace, self.enters_at]

    @classmethod
    def from_plain(cls, plain: Sequence[Any], now: float) -> Participant:
        """Raises TypeError if the structure is wrong."""
        found = cls(*plain)
        found.heard_at = found.marked_at = found.since = now  # it could not report while the coordinator was away
        found.marked_iteration = found.iteration
        found.is_restored = True
        return found

    def rests(self, now: float) -> bool:
        """Whether its peers have missed it, and it is to be left out of topologies. One that is dead would be waited
        for each time that a topology had it again."""
        is_silent = self.missed_at is not None and (self.heard_at or 0.0) <= self.missed_at
        return now < self.rests_until or is_silent

    def measure(self, now: float, window_s: float) -> None:
        """Measure the pace, if the earlier report is old enough."""
        if now - self.marked_at >= window_s:
            newest = (self.iteration - self.marked_iteration) / (now - self.marked_at)
            self.pace = newest if self.pace is None else max(newest, self.pace / 2)  # a pause does not make it slow
            self.marked_iteration, self.marked_at = self.iteration, now
