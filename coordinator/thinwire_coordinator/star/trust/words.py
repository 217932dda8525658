"""The reasons for suspicions, in words, for the node and for the organizer."""

from __future__ import annotations

from thinwire_coordinator.hall.events import Cause
from thinwire_coordinator.star.trust.evidence import RoundEvidence, Shown


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
