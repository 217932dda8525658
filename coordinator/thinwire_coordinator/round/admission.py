"""Who may go on with what, and is a contribution counted? Pure rules: facts come in, a reason in words goes out, or
None where there is nothing to say against it."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.wire.service_pb2 import Receipt


@dataclass(frozen=True)
class Claim:
    """What a contribution says of itself."""

    term: int
    round: int
    step: int
    base_step: int
    samples: int
    payload_bytes: int


@dataclass(frozen=True)
class RoundFacts:
    """What the coordinator knows of the round that is open, and of this node in it."""

    round: int
    step: int
    base_age_max: int
    leased_samples: int | None  # granted, not reported before, up to the position that the claim names; None: no lease
    contributed: bool
    payload_bytes_max: int


@dataclass(frozen=True)
class Refusal:
    reason: Receipt.Reason.ValueType
    text: str


def at_the_door(  # noqa: PLR0911 - one return for each rule
    claim: Claim, term: int, next_round: int, facts: RoundFacts | None
) -> Refusal | None:
    """Judge a contribution by its header, before its payload is taken in.

    term, next_round: of the coordinator, and the number that the next round will have; facts: of the open round, None
    if none is open.
    """
    claimed = (claim.term, claim.round)
    if claimed >= (term, next_round):
        return Refusal(Receipt.REASON_FUTURE_ROUND, f"round {claim.round} of term {claim.term} is not open yet")
    if facts is None or claimed != (term, facts.round):
        return Refusal(Receipt.REASON_LATE, f"round {claim.round} of term {claim.term} is over")
    if facts.leased_samples is None:
        return Refusal(Receipt.REASON_NO_LEASE, f"this node holds no lease in round {facts.round}")
    if facts.contributed:
        return Refusal(Receipt.REASON_DUPLICATE, f"this node has contributed to round {facts.round} already")
    if claim.samples == 0:
        return Refusal(Receipt.REASON_NOTHING_TRAINED, "nothing was trained, so nothing is counted")
    oldest = facts.step - facts.base_age_max
    if not oldest <= claim.base_step <= claim.step <= facts.step:
        return Refusal(
            Receipt.REASON_BASE_AGE,
            f"round {facts.round} stands on step {facts.step}; the base is of step {claim.base_step} and the replica "
            f"at step {claim.step}, and the contract allows steps {oldest} to {facts.step}",
        )
    if claim.samples > facts.leased_samples:
        return Refusal(
            Receipt.REASON_OVER_LEASE, f"{claim.samples} samples claimed; the lease has {facts.leased_samples}"
        )
    if claim.payload_bytes > facts.payload_bytes_max:
        return Refusal(
            Receipt.REASON_MALFORMED, f"{claim.payload_bytes} bytes announced; at most {facts.payload_bytes_max}"
        )
    return None


def weight(samples: int, samples_full: int, weight_max: int) -> int:
    """⌈samples · weight_max / samples_full⌉, at most weight_max: a small integer of 1 or more for 1 or more samples."""
    return -(-min(samples, samples_full) * weight_max // samples_full)


def why_drop_momentum(*, kept: bool, holds_lease: bool, counted_since: int, age_max: int) -> str:
    """Why a node that joins may not go on with the momentum that it kept; empty if it may, or has none to drop.

    kept: it says that it has one. holds_lease: its lease was not taken back. counted_since: contributions cut after
    that momentum was saved which are in an update, or may yet be.
    """
    if not kept:
        return ""
    if not holds_lease:
        return f"it was away for more than {age_max} steps, or took no part in this run, so its momentum is too old"
    if counted_since:
        return "a contribution that left after its momentum was saved is in an update, or may yet be"
    return ""
