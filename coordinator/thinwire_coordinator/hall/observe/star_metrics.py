"""Definitions of the metrics of a star run: its rounds, contributions and updates."""

from __future__ import annotations

from thinwire_common.metrics import Definitions
from thinwire_proto.wire.reasons import Reason

METRICS = Definitions("thinwire_coordinator_")

OUTCOMES = tuple(reason.value for reason in Reason if reason is not Reason.UNKNOWN)  # UNKNOWN answers only questions
"""Values of the label `outcome`: counted, and the reasons for not counting a contribution."""

# rounds
ROUND = METRICS.gauge("round", "Number of the newest round that was opened.")
ROUND_LENGTH_SECONDS = METRICS.gauge("round_length_seconds", "Length of a round, from the contract.")
ROUNDS = METRICS.counter(
    "rounds_total",
    "Rounds that ended. result: sealed (with an update), void (with too few contributions). reason: everybody (every "
    "awaited node contributed), time (the deadline passed).",
    "result",
    "reason",
)
PHASE_SECONDS = METRICS.histogram(
    "phase_seconds",
    "Duration of each phase of a round. phase: gather (from the announcement to the end of the round), merge "
    "(until the update is encoded), seal (until its body and row are on disk), broadcast (from then until a "
    "node's stream has accepted the update; observed once for each node), apply (the update to the "
    "coordinator's own replica).",
    "phase",
    values=("gather", "merge", "seal", "broadcast", "apply"),
)

# contributions
CONTRIBUTIONS = METRICS.counter(
    "contributions_total",
    f"Receipts sent to nodes. outcome: {', '.join(OUTCOMES)}. Any but the first is not counted.",
    "outcome",
    values=OUTCOMES,
)
CONTRIBUTION_SECONDS = METRICS.histogram(
    "contribution_seconds",
    "Times of an accepted contribution. of: after_open (from the announcement of its round to its last byte), "
    "before_deadline (from its last byte to the deadline of the round), receive (from its first part to its last).",
    "of",
    values=("after_open", "before_deadline", "receive"),
)
FINGERPRINTS_COMPARED = METRICS.counter(
    "fingerprints_compared_total",
    "Replica fingerprints compared with the coordinator's, one for each complete contribution. result: equal, "
    "different.",
    "result",
    values=("equal", "different"),
)
EVALUATION_PARTS = METRICS.counter(
    "evaluation_parts_total",
    "Parts of held-out measurements, with --evaluate nodes. result: agreed (a node's loss agreed with the others'), "
    "differed (it did not, and is not used), unanswered (a node did not answer in time, or its answer was refused), "
    "coordinator (no node was left to ask).",
    "result",
    values=("agreed", "differed", "unanswered", "coordinator"),
)

# votes and updates
COMPONENTS = METRICS.counter(
    "components_total", "Components: up, in accepted contributions; down, in sealed updates.", "direction"
)
COMPONENT_BYTES = METRICS.counter(
    "component_bytes_total",
    "Bytes of the same contributions and updates, each update counted once. "
    "8 · component_bytes_total / components_total is the number of bits per component.",
    "direction",
)
DENSE_ALLREDUCE_BYTES = METRICS.counter(
    "dense_allreduce_bytes_total",
    "Bytes that the nodes would have sent with a ring all-reduce of fp32 gradients: for each sealed round with "
    "N counted contributions, 2·(N−1)/N · 4 bytes · parameters from each of the N nodes. They would have "
    "received the same number of bytes.",
)
