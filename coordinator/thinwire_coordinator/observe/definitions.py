"""The metrics of a coordinator. No label has a value for each node, so their number is bounded."""

from __future__ import annotations

from thinwire_common.metrics import Definitions
from thinwire_proto.wire.service_pb2 import Receipt

OUTCOMES = {
    number: name.removeprefix("REASON_").lower()
    for name, number in Receipt.Reason.items()
    if number not in (Receipt.REASON_NONE, Receipt.REASON_UNKNOWN)  # nobody is told of one that never came
}
"""Why a contribution was not counted, as the metrics say it."""

METRICS = Definitions("thinwire_coordinator_")


# what it is, and how
INFO = METRICS.gauge(
    "info",
    "Always 1; the labels say which program this is, the contract's hash in short, and clock or barrier.",
    "version",
    "contract",
    "pace",
)
STATE = METRICS.gauge(
    "state",
    "1 for how it is now, 0 for the rest: starting (the ledger is replayed meanwhile), waiting (for "
    "nodes), training, complete, failed (it could not seal, and ends).",
    "state",
)
READY = METRICS.gauge("ready", "1 while nodes can join, as /readyz says; else 0.")
TERM = METRICS.gauge("term", "Lives of the coordinator on this run, this one included.")
PARAMETERS = METRICS.gauge("parameters", "Parameters of the model.")

# rounds
ROUND = METRICS.gauge("round", "The newest round that was opened.")
ROUND_LENGTH_SECONDS = METRICS.gauge("round_length_seconds", "Length of a round, by the contract.")
STEP = METRICS.gauge("step", "Updates that are sealed.")
STEPS = METRICS.gauge("steps", "Updates that the whole run will have.")
ROUNDS_SEALED = METRICS.counter(
    "rounds_sealed_total",
    "Rounds that ended in a sealed update. reason: everybody (nobody was left to wait for), time (it was up).",
    "reason",
    values=("everybody", "time"),
)
ROUNDS_VOID = METRICS.counter(
    "rounds_void_total",
    "Rounds that ended with too few contributions. reason: how they ended, as above.",
    "reason",
    values=("everybody", "time"),
)
SEALED_TIMESTAMP_SECONDS = METRICS.gauge(
    "sealed_timestamp_seconds",
    "When the newest update was sealed, in Unix time; before the first of this process, when it was ready.",
)
PHASE_SECONDS = METRICS.histogram(
    "phase_seconds",
    "Time that a round's phases take. phase: gather (announced until over), merge (until the update is "
    "encoded), seal (until body and row are on disk), broadcast (from there until the stream of a node "
    "that follows has taken it; once for each), apply (to the coordinator's own replica).",
    "phase",
    values=("gather", "merge", "seal", "broadcast", "apply"),
)

# contributions
CONTRIBUTIONS = METRICS.counter(
    "contributions_total",
    "Receipts given. outcome: counted, or why not: late, future_round, replica_differs, base_age, "
    "malformed, over_lease, no_lease, duplicate, void, nothing_trained.",
    "outcome",
    values=("counted", *OUTCOMES.values()),
)
CONTRIBUTION_AFTER_OPEN_SECONDS = METRICS.histogram(
    "contribution_after_open_seconds", "From a round's announcement to the last byte of a contribution that is in it."
)
CONTRIBUTION_BEFORE_DEADLINE_SECONDS = METRICS.histogram(
    "contribution_before_deadline_seconds",
    "From the last byte of a contribution that is in its round to the round's deadline.",
)
CONTRIBUTION_RECEIVE_SECONDS = METRICS.histogram(
    "contribution_receive_seconds", "From the first part of a contribution that is in its round to the last."
)
FINGERPRINTS_COMPARED = METRICS.counter(
    "fingerprints_compared_total",
    "Replicas compared with the coordinator's: one for each contribution that came whole. result: equal, different.",
    "result",
    values=("equal", "different"),
)

# what is learned
TOKENS = METRICS.counter("tokens_total", "Tokens in contributions that were counted.")
TRAINING_LOSS = METRICS.gauge(
    "training_loss", "Of the newest sealed round's contributions, mean over samples, nats a token."
)
HELD_OUT_LOSS = METRICS.gauge(
    "held_out_loss", "On text that nobody trains on, newest, nats a token; NaN if the run has diverged."
)
HELD_OUT_LOSS_STEP = METRICS.gauge("held_out_loss_step", "The step that it was measured at.")
LEARNING_RATE = METRICS.gauge("learning_rate", "Of the newest sealed update.")

# votes and updates
VOTES = METRICS.counter("votes_total", "Components in contributions that are in their round.")
VOTES_BYTES = METRICS.counter(
    "votes_bytes_total",
    "Bytes of these contributions' payload; eight times this by votes is the bits a component takes upward.",
)
UPDATE_COMPONENTS = METRICS.counter("update_components_total", "Components in sealed updates.")
UPDATE_BODY_BYTES = METRICS.counter(
    "update_body_bytes_total",
    "Bytes of sealed updates, each once; eight times this by components is the bits a component takes downward.",
)
UPDATES = METRICS.counter(
    "updates_total", "Sealed updates, by the form that was the smallest. codec: votes, signs.", "codec"
)

# bytes
PAYLOAD_BYTES = METRICS.counter(
    "payload_bytes_total",
    "Bytes of messages as gRPC hands them over. direction: sent, received. kind: contribution, receipt, "
    "update, announcement, snapshot, corpus, probe, join, status, other.",
    "direction",
    "kind",
)
MESSAGES = METRICS.counter("messages_total", "Messages, likewise.", "direction", "kind")
WIRE_BYTES = METRICS.counter(
    "wire_bytes_total",
    "Bytes of TCP segments with their headers, repeats too, by the kernel's count; Linux only.",
    "direction",
)
CONNECTIONS = METRICS.gauge("connections", "TCP connections to the gRPC port; Linux only.")
DENSE_ALLREDUCE_BYTES = METRICS.counter(
    "dense_allreduce_bytes_total",
    "What the nodes would have sent with a ring all-reduce of fp32 gradients: for each sealed round that "
    "counted N contributions, 2·(N−1)/N · 4 bytes · parameters from each of the N. They would have "
    "received as much again.",
)
COMPRESSION_RATIO = METRICS.gauge(
    "compression_ratio",
    "Twice the bytes above, by those of contributions received and updates sent; since this process started.",
)

# nodes
NODES = METRICS.gauge("nodes", "Nodes that this process knows. state: active, away.", "state")
NODES_CAME = METRICS.counter("nodes_came_total", "Times that a node became active.")
NODES_WENT = METRICS.counter(
    "nodes_went_total",
    "Times that a node ceased to be active. reason: left (it said so), lost (it did not).",
    "reason",
    values=("left", "lost"),
)
FETCHES = METRICS.counter(
    "fetches_total",
    "Times that a node began to fetch what travels once: catching up. what: snapshot, corpus.",
    "what",
    values=("snapshot", "corpus"),
)
WATCHER_FAILURES = METRICS.counter(
    "watcher_failures_total",
    "Exceptions in what only watches: metrics, page, history. Each is in the log, and none of them ends a run.",
)

# the machine
QUEUE_DEPTH = METRICS.gauge(
    "queue_depth",
    "Jobs of a worker thread that wait or run. queue: seal, query, snapshot, replica, merge, evaluation.",
    "queue",
)
DISK_FREE_BYTES = METRICS.gauge(
    "disk_free_bytes",
    "Free on the disk. place: state (the state directory), bodies (the updates, if on another local disk).",
    "place",
)
DISK_NEEDED_BYTES = METRICS.gauge(
    "disk_needed_bytes", "What the rest of the run will take of it, foretold from the updates sealed so far.", "place"
)
