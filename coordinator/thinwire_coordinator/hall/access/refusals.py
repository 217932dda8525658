"""The refusals of calls before they reach the swarm, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DoorReason(Enum):
    """Values are metric labels, and stand in the metadata `thinwire-reason` of a refusal."""

    NO_INVITE = "no_invite"
    """The coordinator does not know the node, and the node presents no token."""
    UNKNOWN_TOKEN = "unknown_token"
    EXPIRED = "expired"
    USED_UP = "used_up"
    REVOKED = "revoked"
    BANNED = "banned"
    STALE_CHALLENGE = "stale_challenge"
    """The challenge is not one that this process gave, or was answered already, or too late."""
    BAD_SIGNATURE = "bad_signature"
    """The node does not hold the secret key of the identity that it claims."""
    OTHER_LEDGER = "other_ledger"
    """The node has seen a row that this ledger does not have: the ledger is an older copy, or another lineage."""
    FULL = "full"
    RATE = "rate"
    """Too many calls: wait, and try again."""
    SLOW = "slow"
    """A message did not come in time."""
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    """A message is not one of this call."""
    ITERATION_BACK = "iteration_back"
    """A report names an earlier iteration than the node's last one."""
    FOREIGN_LEASE = "foreign_lease"
    """A report names samples that are not in the node's lease."""
    OTHER_EXCHANGE = "other_exchange"
    """The run has no such call, because of its `exchange.kind`."""
    FAILED = "failed"
    """The coordinator could not answer: its disk fails, or this is a bug. Its log says why."""


MUST_WAIT = frozenset({DoorReason.BANNED, DoorReason.STALE_CHALLENGE, DoorReason.FULL, DoorReason.RATE})
"""Refusals that end by themselves. After any other, a new attempt would fail as well."""


@dataclass(frozen=True)
class Denied:
    """text: what was wrong and what to do, for the person at the other end."""

    reason: DoorReason
    text: str
