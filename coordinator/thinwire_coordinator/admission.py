"""Is a contribution counted? Pure rules: facts come in, a refusal with its reason goes out, or None."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.service_pb2 import Receipt


@dataclass(frozen=True)
class Claim:
    """What a contribution says of itself."""

    epoch: int
    round: int
    step: int
    samples: int
    payload_bytes: int


@dataclass(frozen=True)
class RoundFacts:
    """What the coordinator knows of the round that is open, and of this node in it."""

    round: int
    step: int
    leased_samples: int | None  # None: no lease in this round
    contributed: bool
    payload_bytes_max: int


@dataclass(frozen=True)
class Refusal:
    reason: Receipt.Reason.ValueType
    text: str


def at_the_door(  # noqa: PLR0911 - one return for each rule
    claim: Claim, epoch: int, next_round: int, facts: RoundFacts | None
) -> Refusal | None:
    """Judge a contribution by its header, before its payload is taken in.

    epoch, next_round: of the coordinator, and the number that the next round will have; facts: of the open round, None
    if none is open.
    """
    claimed = (claim.epoch, claim.round)
    if claimed >= (epoch, next_round):
        return Refusal(Receipt.REASON_FUTURE_ROUND, f"round {claim.round} of epoch {claim.epoch} is not open yet")
    if facts is None or claimed != (epoch, facts.round):
        return Refusal(Receipt.REASON_LATE, f"round {claim.round} of epoch {claim.epoch} is over")
    if claim.step != facts.step:
        return Refusal(
            Receipt.REASON_OTHER_BASE, f"round {facts.round} stands on step {facts.step}, not on step {claim.step}"
        )
    if facts.leased_samples is None:
        return Refusal(Receipt.REASON_NO_LEASE, f"this node holds no lease in round {facts.round}")
    if facts.contributed:
        return Refusal(Receipt.REASON_DUPLICATE, f"this node has contributed to round {facts.round} already")
    if claim.samples == 0:
        return Refusal(Receipt.REASON_NOTHING_TRAINED, "nothing was trained, so nothing is counted")
    if claim.samples > facts.leased_samples:
        return Refusal(
            Receipt.REASON_OVER_LEASE, f"{claim.samples} samples claimed; the lease has {facts.leased_samples}"
        )
    if claim.payload_bytes > facts.payload_bytes_max:
        return Refusal(
            Receipt.REASON_MALFORMED, f"{claim.payload_bytes} bytes announced; at most {facts.payload_bytes_max}"
        )
    return None


def weight(samples: int, leased_samples: int, weight_max: int) -> int:
    """⌈samples · weight_max / leased⌉: a small integer of 1 or more for 1 or more samples."""
    return -(-samples * weight_max // leased_samples)
