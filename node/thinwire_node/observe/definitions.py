"""The metrics of a node: definitions, and how a report gives their values."""

from __future__ import annotations

from collections.abc import Callable

from thinwire_common.metrics import Definition, Definitions
from thinwire_common.traffic import KINDS, PEER_LINES
from thinwire_node.report import STATES, PartView, Report
from thinwire_proto.wire.reasons import OUTCOMES

METRICS = Definitions("thinwire_node_")

Value = float | None
Samples = dict[tuple[str, ...], Value]
"""Values by label values. None: no sample."""
SAMPLES: dict[Definition, Callable[[Report], Samples]] = {}
"""Of all metrics that a report has."""


def _gauge(name: str, help_text: str, value: Callable[[Report], Value]) -> None:
    """Define a gauge without labels."""
    SAMPLES[METRICS.gauge(name, help_text)] = lambda report: {(): value(report)}


def _counter(name: str, help_text: str, value: Callable[[Report], Value]) -> None:
    SAMPLES[METRICS.counter(name, help_text)] = lambda report: {(): value(report)}


def _behind(part: PartView) -> int | None:
    return None if part.step is None or part.head_step is None else max(0, part.head_step - part.step)


def _dropped(report: Report) -> Samples:
    given = report.given
    return {
        ("micro_batches",): given.dropped,
        ("gradients",): given.too_old,
        ("samples",): given.samples_skipped,
        ("shards",): given.shards_skipped,
        ("replicas",): given.resyncs,
        ("sessions",): given.sessions_lost,
    }


def _by_kind(report: Report) -> Samples:
    """Counts for all kinds, including those without messages: a series that starts above 0 hides its first increase."""
    directions = (("sent", report.bytes.sent), ("received", report.bytes.received))
    return {(direction, kind): counts.get(kind, 0) for direction, counts in directions for kind in KINDS}


def _peer_bytes(report: Report) -> Samples:
    if (peers := report.part.peers) is None:
        return {}
    counts = (("sent", peers.sent_bytes_by_line), ("received", peers.received_bytes_by_line))
    return {(direction, line): count[line] for direction, count in counts for line in PEER_LINES}


def _peers(report: Report) -> Samples:
    if (peers := report.part.peers) is None:
        return {}
    return {("direct",): peers.direct, ("relay",): peers.present - peers.direct, ("none",): peers.absent}


# identity and state
INFO = METRICS.gauge("info", "Always 1; the labels say which node this is.", "name", "device", "version")
SAMPLES[INFO] = lambda report: {(report.name, report.device.name, report.version): 1}
STATE = METRICS.gauge(
    "state",
    "1 for the node's current state, 0 for the others: starting, connecting, fetching, catching up, waiting, "
    "training, delivering, leaving, left.",
    "state",
)
SAMPLES[STATE] = lambda report: {(state,): float(state == report.state) for state in STATES}
# position in the run
_gauge("round_length_seconds", "Length of a round in the contract.", lambda report: report.round_length_s)
_gauge(
    "round_left_seconds",
    "Time until the round's deadline, by the coordinator's clock.",
    lambda report: report.part.round_left_s,
)
_gauge("step", "Updates applied to the node's replica.", lambda report: report.part.step)
_gauge("steps_behind", "Sealed updates that the node has not applied yet.", lambda report: _behind(report.part))
# contributions
CONTRIBUTIONS = METRICS.counter(
    "contributions_total",
    f"Contributions with a receipt. outcome: {', '.join(OUTCOMES)}. Any but the first is not counted.",
    "outcome",
)
SAMPLES[CONTRIBUTIONS] = lambda report: {(outcome,): count for outcome, count in report.given.outcomes.items()}
_counter("tokens_total", "Tokens in counted contributions.", lambda report: report.given.tokens)
_gauge(
    "loss",
    "Training loss of the newest contribution, in nats per token, or per pair of preferences.",
    lambda report: report.given.loss,
)
_gauge("lease_samples", "Samples left in the node's lease.", lambda report: report.lease_samples)
_gauge("micro_batch_samples", "Samples in the newest micro-batch.", lambda report: report.given.micro_batch)
DROPPED = METRICS.counter(
    "dropped_total",
    "What could not be used. what: micro_batches (a loss or a gradient was not finite), gradients (their base was too "
    "old), samples (passed over because their shard could not be read), shards (found to be unreadable), replicas "
    "(discarded and fetched again), sessions (ended before the node left).",
    "what",
)
SAMPLES[DROPPED] = _dropped
_gauge(
    "component_bytes",
    "Bytes per component in the payload of the newest contribution. Multiply by 8 for bits.",
    lambda report: (report.given.payload_bytes or 0) / report.given.components if report.given.components else None,
)
# equal replicas
_counter(
    "fingerprint_mismatches_total",
    "Times that the replica differed from the swarm's.",
    lambda report: report.given.mismatches,
)
# time
PHASE_SECONDS = METRICS.histogram(
    "phase_seconds",
    "Time spent in each phase. phase: compute (a micro-batch), encode (an extraction), upload (first byte sent to last "
    "byte received), receipt (end of the upload to the receipt), apply (an update), wait (nothing to train on), "
    "data (the data of the lease are not here), evaluate (a batch of held-out samples), peers (an iteration waits for "
    "messages of other nodes), rest (see --max-compute).",
    "phase",
)
_gauge(
    "upload_slack_seconds",
    "Time from the newest contribution's arrival to its round's deadline; negative if late.",
    lambda report: report.given.slack_s,
)
_gauge("clock_error_seconds", "Bound on the error of the clock offset.", lambda report: report.part.clock_error_s)
# bytes
PAYLOAD_BYTES = METRICS.counter(
    "payload_bytes_total",
    f"Bytes of gRPC messages before framing. direction: sent, received. kind: {', '.join(KINDS)}.",
    "direction",
    "kind",
)
SAMPLES[PAYLOAD_BYTES] = _by_kind
WIRE_BYTES = METRICS.counter(
    "wire_bytes_total",
    "Bytes of TCP segments with headers and retransmissions, counted by the kernel. Linux only.",
    "direction",
)
SAMPLES[WIRE_BYTES] = lambda report: {("sent",): report.bytes.wire_sent, ("received",): report.bytes.wire_received}
_gauge("upload_bytes_per_second", "Upload rate of the last contributions.", lambda report: report.bytes.upload_s)
# the machine
DEVICE_MEMORY_BYTES = METRICS.gauge(
    "device_memory_bytes", "Memory of the training device. of: used (for a CPU, by the process), total.", "of"
)
SAMPLES[DEVICE_MEMORY_BYTES] = lambda report: {
    ("used",): report.device.memory_bytes,
    ("total",): report.device.memory_limit_bytes,
}
RANK_COMPUTE_SECONDS = METRICS.counter(
    "rank_compute_seconds_total",
    "Time of the micro-batches of each process of a node of several: a slow card has more. Where the processes divide "
    "the model, or the rule steps with each gradient, all wait for the slowest, and have as much.",
    "rank",
)
SAMPLES[RANK_COMPUTE_SECONDS] = lambda report: {
    (f"{number}",): rank.compute_s for number, rank in enumerate(report.part.ranks)
}
RANK_MEMORY_BYTES = METRICS.gauge(
    "rank_memory_bytes",
    "Memory in use on the device of each process of a node of several (for a CPU, by the process).",
    "rank",
)
SAMPLES[RANK_MEMORY_BYTES] = lambda report: {
    (f"{number}",): rank.memory_bytes for number, rank in enumerate(report.part.ranks)
}
QUEUE_DEPTH = METRICS.gauge(
    "queue_depth",
    "Items that wait or run. queue: compute (jobs of the compute thread), deliver (contributions without a receipt).",
    "queue",
)
SAMPLES[QUEUE_DEPTH] = lambda report: {("compute",): report.device.jobs, ("deliver",): report.part.to_deliver}
WATCHING_CPU_SECONDS = METRICS.counter(
    "watching_cpu_seconds_total",
    "CPU time of reports, metrics and the terminal view. process_cpu_seconds_total is the whole process.",
)
# gossip
PEER_BYTES = METRICS.counter(
    "peer_bytes_total",
    "Bytes of messages between this node and its peers, in a gossip run. direction: sent, received. line: "
    "direct, relay (through the coordinator).",
    "direction",
    "line",
)
SAMPLES[PEER_BYTES] = _peer_bytes
PEERS = METRICS.gauge("peers", "Peers of this node, in a gossip run. line: direct, relay, none (not there).", "line")
SAMPLES[PEERS] = _peers
