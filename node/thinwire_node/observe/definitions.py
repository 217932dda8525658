"""The metrics of a node."""

from __future__ import annotations

from thinwire_common.metrics import Definitions
from thinwire_common.traffic import KINDS

METRICS = Definitions("thinwire_node_")


# identity and state
INFO = METRICS.gauge("info", "Always 1; the labels say which node this is.", "name", "device", "version")
STATE = METRICS.gauge(
    "state",
    "1 for the node's current state, 0 for the others: starting, connecting, fetching, catching up, waiting, "
    "training, delivering, leaving, left.",
    "state",
)
SESSIONS = METRICS.counter("sessions_total", "Times that the node joined the swarm.")
SESSIONS_LOST = METRICS.counter("sessions_lost_total", "Sessions that ended before the node left.")

# position in the run
ROUND = METRICS.gauge("round", "Number of the newest announced round.")
ROUND_LENGTH_SECONDS = METRICS.gauge("round_length_seconds", "Length of a round in the contract.")
ROUND_LEFT_SECONDS = METRICS.gauge("round_left_seconds", "Time until the round's deadline, by the coordinator's clock.")
STEP = METRICS.gauge("step", "Updates applied to the node's replica.")
STEPS = METRICS.gauge("steps", "Updates in the whole run.")
STEPS_BEHIND = METRICS.gauge("steps_behind", "Sealed updates that the node has not applied yet.")
PARAMETERS = METRICS.gauge("parameters", "Parameters of the model.")

# contributions
CONTRIBUTIONS = METRICS.counter(
    "contributions_total",
    "Contributions with a receipt. outcome: counted, or the reason why not: late, future_round, replica_differs, "
    "base_age, malformed, over_lease, no_lease, duplicate, void, nothing_trained, unknown, signature, suspected.",
    "outcome",
)
TOKENS = METRICS.counter("tokens_total", "Tokens in counted contributions.")
SAMPLES = METRICS.counter("samples_total", "Samples trained, counted or not.")
SAMPLES_SKIPPED = METRICS.counter("samples_skipped_total", "Samples passed over because their shard could not be read.")
SHARDS_SKIPPED = METRICS.counter("shards_skipped_total", "Times that a shard was found to be unreadable.")
FETCHED_BYTES = METRICS.counter(
    "fetched_bytes_total", "Bytes of shards and base weights fetched. source: url, coordinator.", "source"
)
LOSS = METRICS.gauge("loss", "Training loss of the newest contribution, in nats per token.")
LEASE_SAMPLES = METRICS.gauge("lease_samples", "Samples left in the node's lease.")
MICRO_BATCH_SAMPLES = METRICS.gauge("micro_batch_samples", "Samples in the newest micro-batch.")
MICRO_BATCHES_DROPPED = METRICS.counter(
    "micro_batches_dropped_total", "Micro-batches dropped because their loss or gradient was not finite."
)
GRADIENTS_DROPPED = METRICS.counter("gradients_dropped_total", "Gradients dropped because their base was too old.")
COMPONENTS = METRICS.gauge("components", "Components in the newest contribution.")
COMPONENTS_PER_TILE = METRICS.gauge("components_per_tile", "k: components per tile in the current round.")
COMPONENT_BYTES = METRICS.gauge(
    "component_bytes",
    "Bytes per component in the payload of the newest contribution. Multiply by 8 for bits.",
)

# equal replicas
FINGERPRINT_MISMATCHES = METRICS.counter(
    "fingerprint_mismatches_total", "Times that the replica differed from the swarm's."
)
RESYNCS = METRICS.counter("resyncs_total", "Times that the node discarded its replica and fetched it again.")

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
CLOCK_OFFSET_SECONDS = METRICS.gauge("clock_offset_seconds", "The coordinator's clock minus the node's clock.")
CLOCK_ERROR_SECONDS = METRICS.gauge("clock_error_seconds", "Bound on the error of the clock offset.")
CLOCK_JUMPS = METRICS.counter("clock_jumps_total", "Times that the two clocks jumped or drifted apart.")

# bytes
PAYLOAD_BYTES = METRICS.counter(
    "payload_bytes_total",
    f"Bytes of gRPC messages before framing. direction: sent, received. kind: {', '.join(KINDS)}.",
    "direction",
    "kind",
)
MESSAGES = METRICS.counter("messages_total", "gRPC messages, with the same labels.", "direction", "kind")
WIRE_BYTES = METRICS.counter(
    "wire_bytes_total",
    "Bytes of TCP segments with headers and retransmissions, counted by the kernel. Linux only.",
    "direction",
)
PEER_BYTES = METRICS.counter(
    "peer_bytes_total",
    "Bytes of messages between this node and its peers, in a run without a centre. direction: sent, received. line: "
    "direct, relay (through the coordinator).",
    "direction",
    "line",
)
PEERS = METRICS.gauge(
    "peers", "Peers of this node, in a run without a centre. line: direct, relay, none (not there).", "line"
)
UPLOAD_BYTES_PER_SECOND = METRICS.gauge("upload_bytes_per_second", "Upload rate of the last contributions.")

# the machine
DEVICE_MEMORY_BYTES = METRICS.gauge(
    "device_memory_bytes", "Memory in use on the training device; for a CPU, by the process."
)
DEVICE_MEMORY_LIMIT_BYTES = METRICS.gauge("device_memory_limit_bytes", "Total memory of the training device.")
QUEUE_DEPTH = METRICS.gauge(
    "queue_depth",
    "Items that wait or run. queue: compute (jobs of the compute thread), deliver (contributions without a receipt).",
    "queue",
)
WATCHING_CPU_SECONDS = METRICS.counter(
    "watching_cpu_seconds_total",
    "CPU time of reports, metrics and the terminal view. process_cpu_seconds_total is the whole process.",
)
