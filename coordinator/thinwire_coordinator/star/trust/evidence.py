"""The evidence about nodes that one round gives, and the decisions that follow from it.

`comparison` makes `Shown` from the votes of a round, and `audit` makes `Audited`. `Trust.observe` takes all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.hall.events import Cause, Verdict


@dataclass(frozen=True)
class Shown:
    """The evidence from the votes of one contribution.

    agreement: z, how far the votes agree with those of the rest, in standard deviations of random votes; None if it
    cannot be said. copy_of: the node whose votes these are; empty if it is nobody's. repeats: whether they are the
    node's own of an earlier round. empty: whether they are far fewer than those of the others. merged: whether the
    contribution is counted.
    """

    node: str
    agreement: float | None = None
    copy_of: str = ""
    repeats: bool = False
    empty: bool = False
    merged: bool = True


@dataclass(frozen=True)
class Audited:
    """The result of an audit: z, how far the votes follow the gradient of the node's own lease rather than that of
    another lease, in standard deviations of votes that follow neither."""

    node: str
    z: float


@dataclass(frozen=True)
class RoundEvidence:
    """All evidence of one round.

    round: counts upwards. shown: of each contribution that could be read, merged or not. silent: nodes that the round
    waited for, and that sent nothing. mismatched, malformed: nodes whose contribution was refused for that. held_out:
    of each held-out loss that a node measured, the node and whether the loss was wrong.
    """

    round: int
    shown: tuple[Shown, ...] = ()
    silent: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    malformed: tuple[str, ...] = ()
    audits: tuple[Audited, ...] = ()
    held_out: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class Decision:
    """A decision about a node. reason: in words, for the node and the organizer. until: when a ban ends, in seconds on
    the caller's clock."""

    node: str
    round: int
    verdict: Verdict
    cause: Cause
    reason: str
    until: float = 0.0


def because(cause: Cause, node: str, evidence: RoundEvidence, median: float) -> str:
    """Explain why a node is suspected, with the figures of the newest round."""
    shown = next((one for one in evidence.shown if one.node == node), Shown(node))
    agreement = f"z = {shown.agreement:.1f} in round {evidence.round}" if shown.agreement is not None else "over rounds"
    audit = next((f", z = {one.z:.1f} in round {evidence.round}" for one in evidence.audits if one.node == node), "")
    return {
        Cause.AGAINST: f"its votes contradict those of the rest ({agreement}, the median node {median:.1f})",
        Cause.NOISE: f"its votes agree with the rest no more than random ones ({agreement}, "
        f"the median node {median:.1f})",
        Cause.COPY: f"most of its votes are those of another node ({shown.copy_of[:8] or 'of earlier rounds'})",
        Cause.REPEAT: "it sends its own votes of earlier rounds again",
        Cause.EMPTY: "it sends far fewer votes than the others",
        Cause.SILENCE: "it takes samples and sends no contribution",
        Cause.MISMATCH: "its parameters differ from the swarm's, although it was told so",
        Cause.MALFORMED: "its contributions cannot be read",
        Cause.HELD_OUT: "the held-out losses that it measured differ from those that the coordinator found",
        Cause.AUDIT: f"its votes do not come from the samples of its lease (audits{audit})",
    }[cause]
