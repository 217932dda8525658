"""The metrics of a node."""

from __future__ import annotations

from thinwire_common.metrics import Definitions
from thinwire_common.traffic import KINDS
from thinwire_proto.wire.reasons import OUTCOMES

METRICS = Definitions("thinwire_node_")


# identity and state
INFO = METRICS.gauge("info", "Always 1; the labels say which node this is.", "name", "device", "version")
STATE = METRICS.gauge(
    "state",
    "1 for the node's current state, 0 for the others: starting, connecting, fetching, catching up, waiting, "
    "training, delivering, leaving, left.",
    "state",
)
# position in the run
ROUND_LENGTH_SECONDS = METRICS.gauge("round_length_seconds", "Length of a round in the contract.")
ROUND_LEFT_SECONDS = METRICS.gauge("round_left_seconds", "Time until the round's deadline, by the coordinator's clock.")
STEP = METRICS.gauge("step", "Updates applied to the node's replica.")
STEPS_BEHIND = METRICS.gauge("steps_behind", "Sealed updates that the node has not applied yet.")
# contributions
CONTRIBUTIONS = METRICS.counter(
    "contributions_total",
    f"Contributions with a receipt. outcome: {', '.join(OUTCOMES)}. Any but the first is not counted.",
    "outcome",
)
TOKENS = METRICS.counter("tokens_total", "Tokens in counted contributions.")
LOSS = METRICS.gauge("loss", "Training loss of the newest contribution, in nats per token.")
LEASE_SAMPLES = METRICS.gauge("lease_samples", "Samples left in the node's lease.")
MICRO_BATCH_SAMPLES = METRICS.gauge("micro_batch_samples", "Samples in the newest micro-batch.")
DROPPED = METRICS.counter(
    "dropped_total",
    "What could not be used. what: micro_batches (a loss or a gradient was not finite), gradients (their base was too "
    "old), samples (passed over because their shard could not be read), shards (found to be unreadable), replicas "
    "(discarded and fetched again), sessions (ended before the node left).",
    "what",
)
COMPONENT_BYTES = METRICS.gauge(
    "component_bytes",
    "Bytes per component in the payload of the newest contribution. Multiply by 8 for bits.",
)

# equal replicas
FINGERPRINT_MISMATCHES = METRICS.counter(
    "fingerprint_mismatches_total", "Times that the replica differed from the swarm's."
)
# time
PHASE_SECONDS = METRICS.histogram(
    "phase_seconds",
    "Time spent in each phase. phase: compute (a micro-batch), encode (an extraction), upload (first byte sent to last "
    "byte received), receipt (end of the upload to the receipt), apply (an update), wait (nothing to train on), "
    "data (the data of the lease are not here), evaluate (a batch of held-out samples), peers (an iteration waits for "
    "messages of other nodes), rest (see --compute-max).",
    "phase",
)
UPLOAD_SLACK_SECONDS = METRICS.gauge(
    "upload_slack_seconds", "Time from the newest contribution's arrival to its round's deadline; negative if late."
)
CLOCK_ERROR_SECONDS = METRICS.gauge("clock_error_seconds", "Bound on the error of the clock offset.")
# bytes
PAYLOAD_BYTES = METRICS.counter(
    "payload_bytes_total",
    f"Bytes of gRPC messages before framing. direction: sent, received. kind: {', '.join(KINDS)}.",
    "direction",
    "kind",
)
WIRE_BYTES = METRICS.counter(
    "wire_bytes_total",
    "Bytes of TCP segments with headers and retransmissions, counted by the kernel. Linux only.",
    "direction",
)
UPLOAD_BYTES_PER_SECOND = METRICS.gauge("upload_bytes_per_second", "Upload rate of the last contributions.")

# the machine
DEVICE_MEMORY_BYTES = METRICS.gauge(
    "device_memory_bytes",
    "Memory of the training device. of: used (for a CPU, by the process), total.",
    "of",
)
QUEUE_DEPTH = METRICS.gauge(
    "queue_depth",
    "Items that wait or run. queue: compute (jobs of the compute thread), deliver (contributions without a receipt).",
    "queue",
)
WATCHING_CPU_SECONDS = METRICS.counter(
    "watching_cpu_seconds_total",
    "CPU time of reports, metrics and the terminal view. process_cpu_seconds_total is the whole process.",
)
