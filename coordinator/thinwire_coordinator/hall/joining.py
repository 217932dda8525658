"""Joining: the momentum that a node offers, and the swarm's decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OfferedMomentum:
    """A momentum that a joining node kept.

    trained_through: the last sample position in the momentum. sent_since: hashes of the contributions extracted after
    the momentum was saved.
    """

    trained_through: int | None
    sent_since: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JoinDecision:
    """The steps that a node must take before it takes part.

    step: the number of sealed steps. drop_momentum: the reason why the node must drop its momentum; empty if it may
    keep it.
    """

    step: int
    take_snapshot: bool
    drop_momentum: str
