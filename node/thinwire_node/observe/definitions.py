"""The names that `/metrics` of a node has, each with what it is: the one table of them (docs/metrics.md is made from
it). A label's values are written out where they are few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Family:
    """name: as Prometheus shows it, without the _bucket, _sum and _count of a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


FAMILIES = (
    # who and how
    Family(
        "thinwire_node_info", "gauge", ("name", "device", "version"), "Always 1; the labels say which node this is."
    ),
    Family(
        "thinwire_node_state",
        "gauge",
        ("state",),
        "1 for what the node does now, 0 for the rest: starting, connecting, fetching, catching up, waiting, training, "
        "delivering, leaving, left.",
    ),
    Family("thinwire_node_sessions_total", "counter", (), "Times that the node has joined."),
    Family("thinwire_node_sessions_lost_total", "counter", (), "Sessions that ended before the node wanted to leave."),
    # where it stands
    Family("thinwire_node_round", "gauge", (), "The round that was announced last."),
    Family("thinwire_node_round_length_seconds", "gauge", (), "Length of a round, by the contract."),
    Family(
        "thinwire_node_round_left_seconds", "gauge", (), "Time until the round is over, by the coordinator's clock."
    ),
    Family("thinwire_node_step", "gauge", (), "Updates that the node's replica holds."),
    Family("thinwire_node_steps", "gauge", (), "Updates that the whole run will have."),
    Family("thinwire_node_steps_behind", "gauge", (), "Updates that are sealed and not applied here yet: catching up."),
    Family("thinwire_node_parameters", "gauge", (), "Parameters of the model."),
    # what it gave
    Family(
        "thinwire_node_contributions_total",
        "counter",
        ("outcome",),
        "Contributions with a receipt. outcome: counted, or why not: late, future_round, replica_differs, base_age, "
        "malformed, over_lease, no_lease, duplicate, void, nothing_trained, unknown.",
    ),
    Family("thinwire_node_tokens_total", "counter", (), "Tokens in contributions that were counted."),
    Family("thinwire_node_samples_total", "counter", (), "Samples trained, whether they were counted or not."),
    Family("thinwire_node_loss", "gauge", (), "Training loss of the newest contribution, nats a token."),
    Family("thinwire_node_lease_samples", "gauge", (), "Samples that the node may still train on."),
    Family("thinwire_node_micro_batch_samples", "gauge", (), "Samples of the newest micro-batch."),
    Family(
        "thinwire_node_micro_batches_dropped_total",
        "counter",
        (),
        "Micro-batches thrown away since their loss or gradient was not finite.",
    ),
    Family("thinwire_node_gradients_dropped_total", "counter", (), "Gradients dropped since their base was too old."),
    Family("thinwire_node_components", "gauge", (), "Components in the newest contribution."),
    Family("thinwire_node_components_per_tile", "gauge", (), "k: components that a tile may send in this round."),
    Family(
        "thinwire_node_component_bytes",
        "gauge",
        (),
        "Bytes that a component took in the payload of the newest contribution; eight times this is its bits.",
    ),
    # equal replicas
    Family("thinwire_node_fingerprint_mismatches_total", "counter", (), "Times that the replica was not the swarm's."),
    Family("thinwire_node_resyncs_total", "counter", (), "Times that the replica was given up, to be fetched anew."),
    # time
    Family(
        "thinwire_node_phase_seconds",
        "histogram",
        ("phase",),
        "Time spent. phase: compute (a micro-batch), encode (a cut), upload (first byte out to last byte in), "
        "receipt (from there to the receipt), apply (an update), wait (nothing to train on).",
    ),
    Family(
        "thinwire_node_upload_slack_seconds",
        "gauge",
        (),
        "From the newest contribution's arrival to its round's deadline; below zero if it was late.",
    ),
    Family("thinwire_node_clock_offset_seconds", "gauge", (), "Of the coordinator's clock from the node's."),
    Family("thinwire_node_clock_error_seconds", "gauge", (), "How wrong the offset can be."),
    Family(
        "thinwire_node_clock_jumps_total", "counter", (), "Times that the clocks moved against each other, or slept."
    ),
    # bytes
    Family(
        "thinwire_node_payload_bytes_total",
        "counter",
        ("direction", "kind"),
        "Bytes of messages as gRPC hands them over. direction: sent, received. kind: contribution, receipt, update, "
        "announcement, snapshot, corpus, probe, join, status, other.",
    ),
    Family("thinwire_node_messages_total", "counter", ("direction", "kind"), "Messages, likewise."),
    Family(
        "thinwire_node_wire_bytes_total",
        "counter",
        ("direction",),
        "Bytes of TCP segments with their headers, repeats too, by the kernel's count; Linux only.",
    ),
    Family(
        "thinwire_node_upload_bytes_per_second", "gauge", (), "What the link has carried, by the last contributions."
    ),
    # the machine
    Family(
        "thinwire_node_device_memory_bytes",
        "gauge",
        (),
        "Memory held on the training device; on a CPU, by the process.",
    ),
    Family("thinwire_node_device_memory_limit_bytes", "gauge", (), "Memory that the training device has."),
    Family(
        "thinwire_node_queue_depth",
        "gauge",
        ("queue",),
        "Things waiting or under way. queue: compute (jobs of the compute thread), deliver (contributions without a "
        "receipt).",
    ),
    Family(
        "thinwire_node_watching_cpu_seconds_total",
        "counter",
        (),
        "CPU time that reports, metrics and the terminal's view have taken; process_cpu_seconds_total has all.",
    ),
)
