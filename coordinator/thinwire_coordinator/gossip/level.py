"""Codec and `every` of a run whose contract has `exchange.consensus_target`, as each row of a beat seals them.

A row with a measurement has the decision that follows from it; any other has that of the row before. So anybody can
repeat each decision, and a coordinator that starts again reads the newest one from the newest row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from thinwire_coordinator.gossip.measurements import CONSENSUS
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import LEVELS, Decision, Level, decide, level_of
from thinwire_proto.wire.rows import Row

LEVEL = "level"
"""The optional field of a row that has codec and `every`."""


@dataclass(frozen=True)
class GivenLevel:
    """index: on the ladder. calm: see `consensus.Decision`. start: the first iteration in which it holds."""

    index: int
    calm: int = 0
    start: int = 0
    reason: str = "nothing is measured yet"


@dataclass(frozen=True)
class Ladder:
    """The levels that a contract allows, and its target in steps. first: what it begins with."""

    target: float
    levels: tuple[Level, ...]
    first: GivenLevel

    def after(self, before: GivenLevel, in_steps: float, ahead: int) -> GivenLevel:
        """The decision after a measurement. ahead: an iteration that nobody has reached when all have heard of it."""
        found = decide(Decision(before.index, before.calm, ""), in_steps, self.target, self.levels)
        if found.level == before.index:
            return replace(before, calm=found.calm, reason=found.reason)
        return GivenLevel(found.level, found.calm, max(ahead, before.start + 1), found.reason)

    def plain(self, given: GivenLevel) -> dict[str, Any]:
        """The optional field of a row."""
        level = self.levels[given.index]
        return {"codec": level.codec, "every": level.every, "calm": given.calm, "start": given.start}

    def from_plain(self, plain: Any) -> GivenLevel:
        """Read the field of a row. Raises PayloadError."""
        try:
            index = self.levels.index(Level(plain["codec"], plain["every"]))
            calm, start = plain["calm"], plain["start"]
        except (KeyError, TypeError, ValueError):
            raise PayloadError(f"{plain!r} is no level of this contract") from None
        if not (type(calm) is int and type(start) is int and calm >= 0 and start >= 0):
            raise PayloadError(f"{plain!r} has numbers that are no counts")
        return GivenLevel(index, calm, start, "as before the coordinator started again")

    def newest(self, row: Row | None) -> GivenLevel:
        """The level that the newest row of a beat seals. Raises PayloadError."""
        return self.from_plain(row.extras[LEVEL]) if row is not None and LEVEL in row.extras else self.first

    def check(self, before: GivenLevel, row: Row) -> GivenLevel:
        """Check a row of a beat against the one before. Raises PayloadError."""
        found = self.newest(row)
        measured = row.extras.get(CONSENSUS)
        in_steps = measured.get("in_steps") if isinstance(measured, Mapping) else None
        expected = before if in_steps is None else self.after(before, in_steps, found.start)
        if self.plain(expected) != self.plain(found):
            raise PayloadError(f"it seals {self.plain(found)}, but the rows up to it give {self.plain(expected)}")
        return found


def ladder_of_run(contract: Contract) -> Ladder | None:
    """None if codec and `every` stay as the contract has them."""
    exchange = contract.exchange
    if not isinstance(exchange, GossipSpec) or not exchange.is_controlled:
        return None
    return Ladder(exchange.consensus_target, LEVELS, GivenLevel(level_of(exchange.codec, 1)))
