"""Definitions of the coordinator's metrics. No label identifies a node, so the number of series is bounded."""

from __future__ import annotations

from thinwire_common.metrics import Definitions
from thinwire_common.traffic import KINDS
from thinwire_coordinator.hall.events import Verdict
from thinwire_proto.wire.reasons import Reason

METRICS = Definitions("thinwire_coordinator_")


# identity and state
INFO = METRICS.gauge(
    "info",
    "Always 1. Labels: program version, first digits of the contract's hash, pace (clock or barrier).",
    "version",
    "contract",
    "pace",
)
STATE = METRICS.gauge(
    "state",
    "1 for the current state, 0 for the others: starting (the coordinator replays the ledger), waiting (for "
    "nodes), training, complete, failed (a round could not be sealed, so the coordinator shuts down).",
    "state",
)
PARAMETERS = METRICS.gauge("parameters", "Number of parameters of the model.")
STEP = METRICS.gauge("step", "Updates sealed so far.")
STEPS = METRICS.gauge("steps", "Updates in the whole run.")
AMENDMENTS = METRICS.gauge("amendments", "Amendments of the run's contract that are in force.")
SEALED_TIMESTAMP_SECONDS = METRICS.gauge(
    "sealed_timestamp_seconds",
    "Unix time at which the newest update was sealed; in a gossip run, the newest beat. Until this process "
    "seals its first one: when it became ready.",
)

# learning
TOKENS = METRICS.counter("tokens_total", "Tokens in counted contributions.")
SAMPLES_SKIPPED = METRICS.counter(
    "samples_skipped_total", "Samples that nodes passed over because they could not read their data."
)
TRAINING_LOSS = METRICS.gauge(
    "training_loss",
    "Training loss of the newest sealed round: median over its nodes, each with the weight of its votes, in nats per "
    "token, or per pair of preferences. In a gossip run, of the newest beat: median over its nodes, each with its own "
    "parameters.",
)
HELD_OUT_LOSS = METRICS.gauge(
    "held_out_loss",
    "Newest loss on samples that no node trains on, in nats per token, or per pair of preferences. NaN if the run has "
    "diverged. The perplexity is exp(held_out_loss), but of preferences there is none. set: name of the held-out set; "
    "at most 16 sets are measured.",
    "set",
)
HELD_OUT_TEXT_BYTES_PER_TOKEN = METRICS.gauge(
    "held_out_text_bytes_per_token",
    "Bytes of text that one token of the set stands for; absent if the set is not text. held_out_loss / "
    "(held_out_text_bytes_per_token · ln 2) is the loss in bits per byte.",
    "set",
)
LEARNING_RATE = METRICS.gauge(
    "learning_rate",
    "Learning rate of the newest sealed update; in a gossip run, at the median iteration of the newest beat.",
)

# bytes
PAYLOAD_BYTES = METRICS.counter(
    "payload_bytes_total",
    f"Bytes of gRPC messages, without transport overhead. direction: sent, received. kind: {', '.join(KINDS)}.",
    "direction",
    "kind",
)
MESSAGES = METRICS.counter("messages_total", "gRPC messages. Labels as in payload_bytes_total.", "direction", "kind")
WIRE_BYTES = METRICS.counter(
    "wire_bytes_total",
    "Bytes of TCP segments, including headers and retransmissions, as counted by the kernel. Linux only.",
    "direction",
)
# nodes
NODES = METRICS.gauge("nodes", "Nodes known to this process. state: active, away.", "state")
CHANGES = METRICS.counter(
    "node_changes_total",
    "Number of times that a node became active, or stopped being active. change: came, left (it announced this), lost "
    "(it did not).",
    "change",
)
REFUSED = METRICS.counter(
    "refused_total",
    "What was refused, by what and reason. what: call (before the swarm saw it, joins among them), join (by the door; "
    "also sessions that it ended). reason: as docs/operating.md explains.",
    "what",
    "reason",
)
TRUST_DECISIONS = METRICS.counter(
    "trust_decisions_total",
    "Decisions about the trust in nodes. verdict: suspected (its votes are not merged), lowered (it counts as a "
    "newcomer), cleared (its votes are merged again), banned.",
    "verdict",
    values=tuple(verdict.value for verdict in Verdict),
)
SINK_ITEMS = METRICS.counter(
    "sink_items_total",
    "Items given to sinks: points of curves. sink: tensorboard, wandb. "
    "outcome: written, dropped (the sink does not keep up), failed (writing them raised an exception).",
    "sink",
    "outcome",
)

# the machine
QUEUE_DEPTH = METRICS.gauge(
    "queue_depth",
    "Jobs that are queued or running on a worker thread. queue: seal, query, fetch, watch, snapshot, "
    "replica, copy, merge, evaluation.",
    "queue",
)
DISK_FREE_BYTES = METRICS.gauge(
    "disk_free_bytes",
    "Free bytes on a disk. place: state (the state directory), bodies (the updates, if they are on another local "
    "disk).",
    "place",
)
DISK_NEEDED_BYTES = METRICS.gauge(
    "disk_needed_bytes",
    "Bytes of this disk that the rest of the run will use, forecast from the updates sealed so far.",
    "place",
)


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
