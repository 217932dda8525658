"""Admission rules: which contributions a round accepts, and which nodes may keep their momentum.

The rules are pure functions. They take facts and return the reason for a refusal, or nothing if there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire_coordinator.hall.measurement import LOSS_MAX, is_plausible
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire.reasons import Reason


@dataclass(frozen=True)
class ContributionClaim:
    """The claims in the header of a contribution.

    step, fingerprint: the node's replica at the extraction. base_step: the oldest step whose parameters contributed to
    the gradient. trained_through: the last sample position trained on; None if the node names none. loss: mean over the
    samples, in nats per token. dropped: micro-batches whose loss or gradient was not finite. compute_ms: time of
    forward and backward passes. skipped: samples passed over because the node could not read their data. signature: by
    the node's key, over the statement `contribution`.
    """

    session: str
    term: int
    round: int
    step: int
    base_step: int
    fingerprint: int
    samples: int
    trained_through: int | None
    payload_bytes: int
    loss: float = 0.0
    dropped: int = 0
    compute_ms: int = 0
    skipped: int = 0
    signature: bytes = b""


@dataclass(frozen=True)
class RoundFacts:
    """The coordinator's knowledge about the open round and the contributing node.

    leased_samples: samples granted to the node, not reported before, up to the position that the claim names; None if
    the node holds no lease. contributed: whether the node has a contribution in this round already.
    """

    round: int
    step: int
    base_age_max: int
    leased_samples: int | None
    contributed: bool
    payload_bytes_max: int


@dataclass(frozen=True)
class Refusal:
    reason: Reason
    text: str


def check_header(  # noqa: PLR0911 - one return for each rule
    claim: ContributionClaim, term: int, next_round: int, facts: RoundFacts | None
) -> Refusal | None:
    """Check the header of a contribution before its payload is read. Return the reason to refuse it, or None.

    term: the coordinator's term. next_round: the number of the next round to open. facts: the open round; None if no
    round is open.
    """
    claimed = (claim.term, claim.round)
    if claimed >= (term, next_round):
        return Refusal(Reason.FUTURE_ROUND, f"round {claim.round} of term {claim.term} is not open yet")
    if facts is None or claimed != (term, facts.round):
        text = f"round {claim.round} of term {claim.term} was over before this came; nothing is lost"
        return Refusal(Reason.LATE, f"{text}: a later round gets it, and the node sends earlier next time")
    if facts.leased_samples is None:
        return Refusal(Reason.NO_LEASE, f"this node holds no lease in round {facts.round}")
    if facts.contributed:
        return Refusal(Reason.DUPLICATE, f"this node has already contributed to round {facts.round}")
    if claim.samples == 0:
        return Refusal(Reason.NOTHING_TRAINED, "nothing was trained, so nothing is counted")
    oldest = facts.step - facts.base_age_max
    if not oldest <= claim.base_step <= claim.step <= facts.step:
        return Refusal(
            Reason.BASE_AGE,
            f"round {facts.round} starts from step {facts.step}; this contribution has its base at step "
            f"{claim.base_step} and its replica at step {claim.step}; the contract allows steps {oldest} to "
            f"{facts.step}",
        )
    if claim.samples > facts.leased_samples:
        return Refusal(Reason.OVER_LEASE, f"{claim.samples} samples claimed; the lease covers {facts.leased_samples}")
    if not is_plausible(claim.loss):
        text = f"a loss must be finite and at most {LOSS_MAX:g}; this one is {claim.loss}"
        return Refusal(Reason.MALFORMED, text)
    if claim.payload_bytes > facts.payload_bytes_max:
        return Refusal(
            Reason.MALFORMED,
            f"{claim.payload_bytes} bytes announced; at most {facts.payload_bytes_max} are allowed",
        )
    return None


def check_signature(claim: ContributionClaim, name: bytes, key: PublicKey) -> Refusal | None:
    """Check the signature of a complete contribution. Return the reason to refuse it, or None.

    name: the hash of what arrived in this round from this node. key: the node's.
    """
    if not claim.signature:
        return Refusal(Reason.SIGNATURE, "the contribution is not signed; update the node")
    if not key.verifies(claim.signature, statements.contribution(name, claim.samples)):
        text = "the signature is not by this node's key over this contribution: contract, term, round, body and samples"
        return Refusal(Reason.SIGNATURE, text)
    return None


def weight(samples: int, samples_full: int, weight_max: int, trust: float = 1.0) -> int:
    """The weight of a contribution: ⌈⌈samples · weight_max / samples_full⌉ · trust⌉, between 1 and weight_max for
    samples ≥ 1 and a trust above 0; 0 without trust.

    trust: of the coordinator in the node, 0 to 1.
    """
    full = -(-min(samples, samples_full) * weight_max // samples_full)
    return math.ceil(full * trust - 1e-9)


def why_drop_momentum(
    *, kept: bool, holds_lease: bool, counted_since: int, age_max: int, went_back: bool = False
) -> str:
    """Return why a joining node must drop the momentum it kept; empty if it may keep it, or has none.

    kept: whether the node says that it has a momentum. holds_lease: whether the node still holds its lease.
    counted_since: contributions that the node extracted after it saved the momentum, and that are in an update or may
    still get into one. went_back: whether the run has gone back to an earlier step since.
    """
    if not kept:
        return ""
    if went_back:
        return "the run has gone back to an earlier step meanwhile, and the momentum is of steps that were given up"
    if not holds_lease:
        return (
            f"the node was away for more than {age_max} steps or never took part in this run, "
            "so its momentum is too old"
        )
    if counted_since:
        return "a contribution sent after the momentum was saved is in an update, or may still get into one"
    return ""
