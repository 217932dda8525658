"""The names that `/metrics` of the coordinator has, each with what it is: the one table of them. `metrics` makes the
metrics from it, and docs/metrics.md is made from it. A label's values are written out where they are few; none grows
with the number of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "thinwire_coordinator_"


@dataclass(frozen=True)
class Family:
    """name: as Prometheus shows it, without the _bucket, _sum and _count of a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


FAMILIES = (
    # what it is, and how
    Family(
        "thinwire_coordinator_info",
        "gauge",
        ("version", "contract", "pace"),
        "Always 1; the labels say which program this is, the contract's hash in short, and clock or barrier.",
    ),
    Family(
        "thinwire_coordinator_state",
        "gauge",
        ("state",),
        "1 for how it is now, 0 for the rest: starting (the ledger is replayed meanwhile), waiting (for nodes), "
        "training, complete, failed (it could not seal, and ends).",
    ),
    Family("thinwire_coordinator_ready", "gauge", (), "1 while nodes can join, as /healthz says; else 0."),
    Family("thinwire_coordinator_term", "gauge", (), "Lives of the coordinator on this run, this one included."),
    Family("thinwire_coordinator_parameters", "gauge", (), "Parameters of the model."),
    # rounds
    Family("thinwire_coordinator_round", "gauge", (), "The newest round that was opened."),
    Family("thinwire_coordinator_round_length_seconds", "gauge", (), "Length of a round, by the contract."),
    Family("thinwire_coordinator_step", "gauge", (), "Updates that are sealed."),
    Family("thinwire_coordinator_steps", "gauge", (), "Updates that the whole run will have."),
    Family(
        "thinwire_coordinator_rounds_sealed_total",
        "counter",
        ("reason",),
        "Rounds that ended in a sealed update. reason: everybody (nobody was left to wait for), time (it was up).",
    ),
    Family(
        "thinwire_coordinator_rounds_void_total",
        "counter",
        ("reason",),
        "Rounds that ended with too few contributions. reason: how they ended, as above.",
    ),
    Family(
        "thinwire_coordinator_sealed_timestamp_seconds",
        "gauge",
        (),
        "When the newest update was sealed, in Unix time; before the first of this process, when it was ready.",
    ),
    Family(
        "thinwire_coordinator_phase_seconds",
        "histogram",
        ("phase",),
        "Time that a round's phases take. phase: gather (announced until over), merge (until the update is encoded), "
        "seal (until body and row are on disk), broadcast (from there until the stream of a node that follows has "
        "taken it; once for each), apply (to the coordinator's own replica).",
    ),
    # contributions
    Family(
        "thinwire_coordinator_contributions_total",
        "counter",
        ("outcome",),
        "Receipts given. outcome: counted, or why not: late, future_round, replica_differs, base_age, malformed, "
        "over_lease, no_lease, duplicate, void, nothing_trained.",
    ),
    Family(
        "thinwire_coordinator_contribution_after_open_seconds",
        "histogram",
        (),
        "From a round's announcement to the last byte of a contribution that is in it.",
    ),
    Family(
        "thinwire_coordinator_contribution_before_deadline_seconds",
        "histogram",
        (),
        "From the last byte of a contribution that is in its round to the round's deadline.",
    ),
    Family(
        "thinwire_coordinator_contribution_receive_seconds",
        "histogram",
        (),
        "From the first part of a contribution that is in its round to the last.",
    ),
    Family(
        "thinwire_coordinator_fingerprints_compared_total",
        "counter",
        ("result",),
        "Replicas compared with the coordinator's: one for each contribution that came whole. result: equal, "
        "different.",
    ),
    # what is learned
    Family("thinwire_coordinator_tokens_total", "counter", (), "Tokens in contributions that were counted."),
    Family(
        "thinwire_coordinator_training_loss",
        "gauge",
        (),
        "Of the newest sealed round's contributions, mean over samples, nats a token.",
    ),
    Family(
        "thinwire_coordinator_held_out_loss",
        "gauge",
        (),
        "On text that nobody trains on, newest, nats a token; NaN if the run has diverged.",
    ),
    Family("thinwire_coordinator_held_out_loss_step", "gauge", (), "The step that it was measured at."),
    Family("thinwire_coordinator_learning_rate", "gauge", (), "Of the newest sealed update."),
    # votes and updates
    Family("thinwire_coordinator_votes_total", "counter", (), "Components in contributions that are in their round."),
    Family(
        "thinwire_coordinator_votes_bytes_total",
        "counter",
        (),
        "Bytes of these contributions' payload; eight times this by votes is the bits a component takes upward.",
    ),
    Family("thinwire_coordinator_update_components_total", "counter", (), "Components in sealed updates."),
    Family(
        "thinwire_coordinator_update_body_bytes_total",
        "counter",
        (),
        "Bytes of sealed updates, each once; eight times this by components is the bits a component takes downward.",
    ),
    Family(
        "thinwire_coordinator_updates_total",
        "counter",
        ("codec",),
        "Sealed updates, by the form that was the smallest. codec: votes, signs.",
    ),
    # bytes
    Family(
        "thinwire_coordinator_payload_bytes_total",
        "counter",
        ("direction", "kind"),
        "Bytes of messages as gRPC hands them over. direction: sent, received. kind: contribution, receipt, update, "
        "announcement, snapshot, corpus, probe, join, status, other.",
    ),
    Family("thinwire_coordinator_messages_total", "counter", ("direction", "kind"), "Messages, likewise."),
    Family(
        "thinwire_coordinator_wire_bytes_total",
        "counter",
        ("direction",),
        "Bytes of TCP segments with their headers, repeats too, by the kernel's count; Linux only.",
    ),
    Family("thinwire_coordinator_connections", "gauge", (), "TCP connections to the gRPC port; Linux only."),
    Family(
        "thinwire_coordinator_dense_allreduce_bytes_total",
        "counter",
        (),
        "What the nodes would have sent with a ring all-reduce of fp32 gradients: for each sealed round that counted N "
        "contributions, 2·(N−1)/N · 4 bytes · parameters from each of the N. They would have received as much again.",
    ),
    Family(
        "thinwire_coordinator_compression_ratio",
        "gauge",
        (),
        "Twice the bytes above, by those of contributions received and updates sent; since this process started.",
    ),
    # nodes
    Family(
        "thinwire_coordinator_nodes",
        "gauge",
        ("state",),
        "Nodes that this process knows. state: active, away.",
    ),
    Family("thinwire_coordinator_nodes_came_total", "counter", (), "Times that a node became active."),
    Family(
        "thinwire_coordinator_nodes_went_total",
        "counter",
        ("reason",),
        "Times that a node ceased to be active. reason: left (it said so), lost (it did not).",
    ),
    Family(
        "thinwire_coordinator_fetches_total",
        "counter",
        ("what",),
        "Times that a node began to fetch what travels once: catching up. what: snapshot, corpus.",
    ),
    Family(
        "thinwire_coordinator_watcher_failures_total",
        "counter",
        (),
        "Exceptions in what only watches: metrics, page, history. Each is in the log, and none of them ends a run.",
    ),
    # the machine
    Family(
        "thinwire_coordinator_queue_depth",
        "gauge",
        ("queue",),
        "Jobs of a worker thread that wait or run. queue: seal, query, snapshot, replica, merge, evaluation.",
    ),
    Family(
        "thinwire_coordinator_disk_free_bytes",
        "gauge",
        ("place",),
        "Free on the disk. place: state (the state directory), bodies (the updates, if on another local disk).",
    ),
    Family(
        "thinwire_coordinator_disk_needed_bytes",
        "gauge",
        ("place",),
        "What the rest of the run will take of it, foretold from the updates sealed so far.",
    ),
)

_BY_NAME = {entry.name.removeprefix(PREFIX): entry for entry in FAMILIES}


def family(name: str) -> Family:
    """By its name without the prefix."""
    return _BY_NAME[name]
