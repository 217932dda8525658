"""The metrics of a node."""

from __future__ import annotations

from thinwire_common.metrics import Definitions

METRICS = Definitions("thinwire_node_")


# who and how
INFO = METRICS.gauge("info", "Always 1; the labels say which node this is.", "name", "device", "version")
STATE = METRICS.gauge(
    "state",
    "1 for what the node does now, 0 for the rest: starting, connecting, fetching, catching up, waiting, "
    "training, delivering, leaving, left.",
    "state",
)
SESSIONS = METRICS.counter("sessions_total", "Times that the node has joined.")
SESSIONS_LOST = METRICS.counter("sessions_lost_total", "Sessions that ended before the node wanted to leave.")

# where it stands
ROUND = METRICS.gauge("round", "The round that was announced last.")
ROUND_LENGTH_SECONDS = METRICS.gauge("round_length_seconds", "Length of a round, by the contract.")
ROUND_LEFT_SECONDS = METRICS.gauge("round_left_seconds", "Time until the round is over, by the coordinator's clock.")
STEP = METRICS.gauge("step", "Updates that the node's replica holds.")
STEPS = METRICS.gauge("steps", "Updates that the whole run will have.")
STEPS_BEHIND = METRICS.gauge("steps_behind", "Updates that are sealed and not applied here yet: catching up.")
PARAMETERS = METRICS.gauge("parameters", "Parameters of the model.")

# what it gave
CONTRIBUTIONS = METRICS.counter(
    "contributions_total",
    "Contributions with a receipt. outcome: counted, or why not: late, future_round, replica_differs, "
    "base_age, malformed, over_lease, no_lease, duplicate, void, nothing_trained, unknown.",
    "outcome",
)
TOKENS = METRICS.counter("tokens_total", "Tokens in contributions that were counted.")
SAMPLES = METRICS.counter("samples_total", "Samples trained, whether they were counted or not.")
LOSS = METRICS.gauge("loss", "Training loss of the newest contribution, nats a token.")
LEASE_SAMPLES = METRICS.gauge("lease_samples", "Samples that the node may still train on.")
MICRO_BATCH_SAMPLES = METRICS.gauge("micro_batch_samples", "Samples of the newest micro-batch.")
MICRO_BATCHES_DROPPED = METRICS.counter(
    "micro_batches_dropped_total", "Micro-batches thrown away since their loss or gradient was not finite."
)
GRADIENTS_DROPPED = METRICS.counter("gradients_dropped_total", "Gradients dropped since their base was too old.")
COMPONENTS = METRICS.gauge("components", "Components in the newest contribution.")
COMPONENTS_PER_TILE = METRICS.gauge("components_per_tile", "k: components that a tile may send in this round.")
COMPONENT_BYTES = METRICS.gauge(
    "component_bytes",
    "Bytes that a component took in the payload of the newest contribution; eight times this is its bits.",
)

# equal replicas
FINGERPRINT_MISMATCHES = METRICS.counter("fingerprint_mismatches_total", "Times that the replica was not the swarm's.")
RESYNCS = METRICS.counter("resyncs_total", "Times that the replica was given up, to be fetched anew.")

# time
PHASE_SECONDS = METRICS.histogram(
    "phase_seconds",
    "Time spent. phase: compute (a micro-batch), encode (an extraction), upload (first byte out to last byte in), "
    "receipt (from there to the receipt), apply (an update), wait (nothing to train on).",
    "phase",
)
UPLOAD_SLACK_SECONDS = METRICS.gauge(
    "upload_slack_seconds", "From the newest contribution's arrival to its round's deadline; below zero if it was late."
)
CLOCK_OFFSET_SECONDS = METRICS.gauge("clock_offset_seconds", "Of the coordinator's clock from the node's.")
CLOCK_ERROR_SECONDS = METRICS.gauge("clock_error_seconds", "How wrong the offset can be.")
CLOCK_JUMPS = METRICS.counter("clock_jumps_total", "Times that the clocks moved against each other, or slept.")

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
UPLOAD_BYTES_PER_SECOND = METRICS.gauge(
    "upload_bytes_per_second", "What the link has carried, by the last contributions."
)

# the machine
DEVICE_MEMORY_BYTES = METRICS.gauge(
    "device_memory_bytes", "Memory held on the training device; on a CPU, by the process."
)
DEVICE_MEMORY_LIMIT_BYTES = METRICS.gauge("device_memory_limit_bytes", "Memory that the training device has.")
QUEUE_DEPTH = METRICS.gauge(
    "queue_depth",
    "Things waiting or under way. queue: compute (jobs of the compute thread), deliver (contributions "
    "without a receipt).",
    "queue",
)
WATCHING_CPU_SECONDS = METRICS.counter(
    "watching_cpu_seconds_total",
    "CPU time that reports, metrics and the terminal's view have taken; process_cpu_seconds_total has all.",
)
