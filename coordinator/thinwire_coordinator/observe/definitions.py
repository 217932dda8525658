"""Definitions of the coordinator's metrics. No label identifies a node, so the number of series is bounded."""

from __future__ import annotations

from thinwire_common.metrics import Definitions
from thinwire_common.traffic import KINDS
from thinwire_coordinator.access.refusals import DoorReason
from thinwire_coordinator.trust.evidence import Verdict
from thinwire_proto.wire.reasons import Reason

OUTCOMES = tuple(reason.value for reason in Reason if reason is not Reason.UNKNOWN)  # UNKNOWN answers only questions
"""Values of the label `outcome`: counted, and the reasons for not counting a contribution."""

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
READY = METRICS.gauge("ready", "1 while nodes can join (as /readyz reports), otherwise 0.")
TERM = METRICS.gauge("term", "Number of times that a coordinator has started on this run, including the current one.")
PARAMETERS = METRICS.gauge("parameters", "Number of parameters of the model.")

# rounds
ROUND = METRICS.gauge("round", "Number of the newest round that was opened.")
ROUND_LENGTH_SECONDS = METRICS.gauge("round_length_seconds", "Length of a round, from the contract.")
STEP = METRICS.gauge("step", "Updates sealed so far.")
STEPS = METRICS.gauge("steps", "Updates in the whole run.")
ITERATIONS = METRICS.gauge(
    "iterations",
    'Iterations that the nodes of a run without a centre (exchange.kind = "gossip") have done. of: least, median and '
    "most among those that take part.",
    "of",
)
TOPOLOGY = METRICS.gauge("topology", "Number of the newest topology of a run without a centre; 0 before the first.")
TOPOLOGY_MEMBERS = METRICS.gauge("topology_members", "Members of the newest topology of a run without a centre.")
BEATS = METRICS.gauge("beats", "Beats of a run without a centre that are sealed as rows, in all terms.")
DISAGREEMENT = METRICS.gauge(
    "disagreement",
    "Root mean square distance of the nodes' parameters from their mean, estimated from a sketch of each. Only in a "
    "run without a centre, once two nodes have sent one.",
)
DISAGREEMENT_IN_STEPS = METRICS.gauge(
    "disagreement_in_steps",
    "The same distance over the root mean square of the nodes' steps in that iteration. Training needs it to be small.",
)
ROUNDS_SEALED = METRICS.counter(
    "rounds_sealed_total",
    "Rounds that ended with a sealed update. reason: everybody (every awaited node contributed), time (the "
    "deadline passed).",
    "reason",
    values=("everybody", "time"),
)
ROUNDS_VOID = METRICS.counter(
    "rounds_void_total",
    "Rounds that ended with too few contributions. reason: why they ended, as in rounds_sealed_total.",
    "reason",
    values=("everybody", "time"),
)
SEALED_TIMESTAMP_SECONDS = METRICS.gauge(
    "sealed_timestamp_seconds",
    "Unix time at which the newest update was sealed; in a run without a centre, the newest beat. Until this process "
    "seals its first one: when it became ready.",
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
    "Receipts sent to nodes. outcome: counted, or the reason for not counting it: late, future_round, "
    "replica_differs, base_age, malformed, over_lease, no_lease, duplicate, void, nothing_trained, signature, "
    "suspected.",
    "outcome",
    values=OUTCOMES,
)
CONTRIBUTION_AFTER_OPEN_SECONDS = METRICS.histogram(
    "contribution_after_open_seconds",
    "Time from the announcement of a round to the last byte of a contribution accepted into it.",
)
CONTRIBUTION_BEFORE_DEADLINE_SECONDS = METRICS.histogram(
    "contribution_before_deadline_seconds",
    "Time from the last byte of an accepted contribution to the deadline of its round.",
)
CONTRIBUTION_RECEIVE_SECONDS = METRICS.histogram(
    "contribution_receive_seconds", "Time from the first part of an accepted contribution to its last part."
)
FINGERPRINTS_COMPARED = METRICS.counter(
    "fingerprints_compared_total",
    "Replica fingerprints compared with the coordinator's, one for each complete contribution. result: equal, "
    "different.",
    "result",
    values=("equal", "different"),
)

# learning
TOKENS = METRICS.counter("tokens_total", "Tokens in counted contributions.")
SAMPLES_SKIPPED = METRICS.counter(
    "samples_skipped_total", "Samples that nodes passed over because they could not read their data."
)
TRAINING_LOSS = METRICS.gauge(
    "training_loss",
    "Training loss of the newest sealed round: median over its nodes, each with the weight of its votes, in nats per "
    "token. In a run without a centre, of the newest beat: median over its nodes, each with its own parameters.",
)
HELD_OUT_LOSS = METRICS.gauge(
    "held_out_loss",
    "Newest loss on samples that no node trains on, in nats per token. NaN if the run has diverged. The perplexity is "
    "exp(held_out_loss). set: name of the held-out set; at most 16 sets are measured.",
    "set",
)
HELD_OUT_LOSS_STEP = METRICS.gauge("held_out_loss_step", "Step at which held_out_loss was measured.", "set")
HELD_OUT_TEXT_BYTES_PER_TOKEN = METRICS.gauge(
    "held_out_text_bytes_per_token",
    "Bytes of text that one token of the set stands for; absent if the set is not text. held_out_loss / "
    "(held_out_text_bytes_per_token · ln 2) is the loss in bits per byte.",
    "set",
)
EVALUATION_PARTS = METRICS.counter(
    "evaluation_parts_total",
    "Parts of held-out measurements, with --evaluate nodes. result: agreed (a node's loss agreed with the others'), "
    "differed (it did not, and is not used), unanswered (a node did not answer in time, or its answer was refused), "
    "coordinator (no node was left to ask).",
    "result",
    values=("agreed", "differed", "unanswered", "coordinator"),
)
LEARNING_RATE = METRICS.gauge(
    "learning_rate",
    "Learning rate of the newest sealed update; in a run without a centre, at the median iteration of the newest beat.",
)

# votes and updates
VOTES = METRICS.counter("votes_total", "Components in accepted contributions.")
VOTES_BYTES = METRICS.counter(
    "votes_bytes_total",
    "Payload bytes of accepted contributions. 8 · votes_bytes_total / votes_total is the number of "
    "bits per component sent up.",
)
UPDATE_COMPONENTS = METRICS.counter("update_components_total", "Components in sealed updates.")
UPDATE_BODY_BYTES = METRICS.counter(
    "update_body_bytes_total",
    "Bytes of sealed updates, each counted once. 8 · update_body_bytes_total / update_components_total is the "
    "number of bits per component sent down.",
)
UPDATES = METRICS.counter(
    "updates_total",
    "Sealed updates by encoding. codec: votes, signs, levels.",
    "codec",
    values=("votes", "signs", "levels"),
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
CONNECTIONS = METRICS.gauge("connections", "Open TCP connections to the gRPC port. Linux only.")
DENSE_ALLREDUCE_BYTES = METRICS.counter(
    "dense_allreduce_bytes_total",
    "Bytes that the nodes would have sent with a ring all-reduce of fp32 gradients: for each sealed round with "
    "N counted contributions, 2·(N−1)/N · 4 bytes · parameters from each of the N nodes. They would have "
    "received the same number of bytes.",
)
COMPRESSION_RATIO = METRICS.gauge(
    "compression_ratio",
    "2 · dense_allreduce_bytes_total, divided by the bytes of contributions received and updates sent since this "
    "process started.",
)

# nodes
NODES = METRICS.gauge("nodes", "Nodes known to this process. state: active, away.", "state")
NODES_CAME = METRICS.counter("nodes_came_total", "Number of times that a node became active.")
CALLS_REFUSED = METRICS.counter(
    "calls_refused_total",
    "Calls that the port refused before the swarm saw them, joins among them. reason: as docs/operating.md explains.",
    "reason",
    values=tuple(reason.value for reason in DoorReason),
)
MEMORY_BOUND_BYTES = METRICS.gauge(
    "memory_bound_bytes", "The most memory that the coordinator takes, whatever arrives. 0 before nodes can join."
)
JOINS_REFUSED = METRICS.counter(
    "joins_refused_total",
    "Joins that the door refused, and sessions that it ended. reason: as docs/operating.md explains.",
    "reason",
    values=tuple(reason.value for reason in DoorReason),
)
TRUST_DECISIONS = METRICS.counter(
    "trust_decisions_total",
    "Decisions about the trust in nodes. verdict: suspected (its votes are not merged), lowered (it counts as a "
    "newcomer), cleared (its votes are merged again), banned.",
    "verdict",
    values=tuple(verdict.value for verdict in Verdict),
)
NODES_WENT = METRICS.counter(
    "nodes_went_total",
    "Number of times that a node stopped being active. reason: left (it announced this), lost (it did not).",
    "reason",
    values=("left", "lost"),
)
FETCHES = METRICS.counter(
    "fetches_total",
    "Number of times that a node started to fetch a file while catching up. what: snapshot, corpus, blob.",
    "what",
    values=("snapshot", "corpus", "blob"),
)
WATCHER_FAILURES = METRICS.counter(
    "watcher_failures_total",
    "Exceptions in observers: metrics, page and history. Each one is logged; none of them ends the run.",
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
