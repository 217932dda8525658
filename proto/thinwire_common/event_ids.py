"""All events that the daemons log, by id. Ids and fields are an interface that programs rely on.

`python -m tools.events_table` generates `docs/events.md` from this table, and a test compares the table with the code.
"""

from __future__ import annotations

from dataclasses import dataclass

RESERVED = ("time", "level", "logger", "message", "event", "exception")
"""Keys of every line of a JSON log. No field may use them."""


@dataclass(frozen=True)
class EventType:
    """The meaning of an event and the names of its fields."""

    meaning: str
    fields: tuple[str, ...] = ()
    """Names of the fields, in a good reading order."""


FIELDS = {
    "accepted_loss": "loss that counts in place of the one that differs, in nats per token, or per pair of preferences",
    "address": "HOST:PORT of the coordinator's gRPC port",
    "bits_per_byte": "loss in bits per byte of text, or null if it is not text",
    "blob": "the SHA-256 of a file that nodes fetch as they need it, in hex",
    "bytes": "size in bytes",
    "cause": "what the node is suspected of; docs/trust.md has the list",
    "contract": "the contract's hash, in hex",
    "counted": "contributions that were counted",
    "distance": "root mean square distance of the nodes from their mean",
    "dropped": "micro-batches that were dropped",
    "ends": "the last day on which a certificate is valid, as an ISO 8601 time, or null",
    "fingerprint": "fingerprint of the parameters with nonce 0, in hex",
    "forwards": "whether the proxy adds its client's address to X-Forwarded-For",
    "head": "head of the chain of all that the node has mixed, in hex",
    "iteration": "iterations that the node has finished, in a gossip run",
    "in_steps": "the same over the root mean square of the nodes' steps; null without a step",
    "joined": "whether the node had joined",
    "loss": "loss in nats per token, or per pair of preferences",
    "machine_bytes": "memory of the machine or of the container, in bytes",
    "measured_by": "who measured it: coordinator, nodes or both",
    "member": "member number of a node, in a gossip run",
    "members": "number of members of a topology",
    "memory_bytes": "the most memory that the program takes, in bytes",
    "name": "the node's name; not unique",
    "node": "the node's report, as `thinwire-node status --json` shows it",
    "node_id": "the node's id, which stays the same",
    "nodes": "number of nodes",
    "not_counted": "contributions that were not counted",
    "page": "URL of the page, or null without one",
    "paused": "whether the run is paused",
    "pause_s": "seconds until the next attempt",
    "peers": "number of peers in a topology",
    "place": "file, or folder or address of files",
    "port": "TCP port that the node listens on for its peers",
    "reach": "who can reach it: machine, link, home, provider, everybody or nobody",
    "reason": "the reason, for people",
    "received_bytes": "payload received, in bytes",
    "refusal": "the reason in one word, as in operating.md",
    "refused": "why the parameters were refused; empty if they were taken",
    "renewed": "whether it was replaced",
    "replica_differs": "whether the reason is that the node's parameters differ from the coordinator's",
    "resyncs": "how often the node fetched its parameters again",
    "round": "the round's number, within the term",
    "samples": "number of samples",
    "sent_bytes": "payload sent, in bytes",
    "set": "name of the held-out set, or null",
    "short_bytes": "missing disk space, in bytes; 0 if there is enough",
    "sink": "tensorboard or wandb",
    "slept_s": "how long the machine slept, in seconds",
    "start": "the first iteration in which a topology holds",
    "step": "the step, which is the number of updates before it",
    "term": "the number of the coordinator's term (one life of its process)",
    "times": "how often it happened since the last line",
    "tokens": "tokens in counted contributions",
    "topology": "number of a topology, in a gossip run",
    "total_bytes": "disk space that the whole run will need, in bytes",
    "until": "Unix time in seconds, or null",
    "verdict": "suspected, lowered, cleared or banned",
    "waited_s": "how long it waited, in seconds",
}
"""The meaning of each field, which is the same in every event."""

COORDINATOR = {
    "coordinator.proxy": EventType(
        "A proxy terminates TLS. forwards: whether limits hold for its clients' addresses, not for its own.",
        ("forwards",),
    ),
    "coordinator.reachable": EventType(
        "The coordinator has tried the address in its invites; with a reason, in vain.", ("address", "reach", "reason")
    ),
    "coordinator.listening": EventType("Nodes can join.", ("address", "page", "term", "contract")),
    "coordinator.certificate": EventType(
        "The TLS certificate was replaced, or cannot be: then the old one stays in use.", ("renewed", "ends", "reason")
    ),
    "coordinator.memory_bound": EventType(
        "The most memory that the coordinator takes, and what the machine has.", ("memory_bytes", "machine_bytes")
    ),
    "coordinator.disk_forecast": EventType(
        "The disk space that the run will need. short_bytes: of the disk that lacks most.",
        ("total_bytes", "short_bytes"),
    ),
    "coordinator.blob_unusable": EventType(
        "A file of data or of a base is damaged or cannot be read, and is not served until it can.", ("place", "reason")
    ),
    "coordinator.snapshot_written": EventType("A snapshot was written.", ("step",)),
    "coordinator.snapshot_unsound": EventType(
        "A snapshot cannot be used. At a start, it is renamed to STEP.bad; later, older ones are not deleted.",
        ("step",),
    ),
    "coordinator.files_differ": EventType(
        "Bodies or rows are missing or damaged, so what may belong to them is not deleted.", ("place", "reason")
    ),
    "coordinator.sink_failed": EventType(
        "A sink cannot be written, does not keep up, or has not ended in time; the run goes on.", ("sink", "reason")
    ),
    "coordinator.login_refused": EventType("Somebody said a wrong secret to the organizer's panel."),
    "coordinator.loss_measured": EventType(
        "The loss on a held-out set was measured.", ("step", "set", "loss", "bits_per_byte", "measured_by")
    ),
    "coordinator.not_measured": EventType(
        "A held-out loss is not measured: samples are damaged, or nodes did not answer before the next measurement. "
        "set: null for all sets.",
        ("set", "reason"),
    ),
    "coordinator.diverged": EventType("The loss on a held-out set is not finite.", ("step", "set")),
    "coordinator.evaluation_differs": EventType(
        "A node's held-out loss differs from that of the others, and is not used.",
        ("node_id", "name", "step", "set", "loss", "accepted_loss"),
    ),
    "coordinator.evaluation_by": EventType(
        "Who measures the held-out loss: in this run or, while fewer than two nodes can, for now.",
        ("measured_by", "reason"),
    ),
    "coordinator.round_sealed": EventType("A round ended with an update (level debug).", ("round", "step")),
    "coordinator.topology": EventType(
        "In a gossip run, a topology begins at the iteration `start`.", ("topology", "start", "members", "reason")
    ),
    "coordinator.disagreement": EventType(
        "In a gossip run, the distance of the nodes from their mean was measured. in_steps: over the size of a step.",
        ("iteration", "nodes", "distance", "in_steps"),
    ),
    "coordinator.deposit_bounded": EventType(
        "In a gossip run, the parameters of a node do not fit its last sketch or those of others; they are "
        "not in the final mean, or not whole.",
        ("node_id", "reason"),
    ),
    "coordinator.round_void": EventType("A round ended without an update.", ("round", "reason")),
    "coordinator.trust_changed": EventType(
        "The coordinator suspects a node, clears it, makes it a newcomer again, or bans it.",
        ("node_id", "name", "verdict", "cause", "reason"),
    ),
    "coordinator.join_refused": EventType(
        "The coordinator refused a node that wanted to join; at most one line for each `refusal` every 10 seconds.",
        ("node_id", "refusal", "reason", "times"),
    ),
    "coordinator.pause": EventType(
        "The organizer has paused the run, or let it go on. until: Unix time; null: until the organizer says so.",
        ("paused", "until"),
    ),
    "coordinator.amended": EventType(
        "The contract has changed for the update of this step and those after it.", ("step", "reason")
    ),
    "coordinator.session_ended": EventType(
        "The coordinator has ended a node's session, because the node is banned.", ("node_id", "name", "reason")
    ),
    "coordinator.not_counted": EventType("A contribution was refused.", ("node_id", "name", "reason")),
    "coordinator.samples_skipped": EventType(
        "A node has passed over samples whose data it cannot read.", ("node_id", "name", "samples")
    ),
    "coordinator.replica_differs": EventType(
        "A node's parameters differ from the coordinator's; its votes are not merged.", ("node_id", "name", "step")
    ),
    "coordinator.call_failed": EventType(
        "A call failed by a fault of the coordinator, whose caller is told nothing of it; at most one line a second.",
        ("reason",),
    ),
    "coordinator.run_complete": EventType("The last update of the run is sealed.", ("step",)),
    "coordinator.failed": EventType(
        "The program ends with exit status 1, or 2 after a wrong option; the message is the reason."
    ),
}

NODE = {
    "node.joined": EventType("The coordinator has accepted the node.", ("address", "name", "node_id")),
    "node.no_session": EventType(
        "The connection failed, was refused or was lost; the node will try again.", ("joined", "reason")
    ),
    "node.retrying": EventType("The node pauses before it tries again.", ("pause_s",)),
    "node.source_failed": EventType(
        "A source of a shard, or of another blob, did not give it; the node tries the next one.",
        ("place", "blob", "reason"),
    ),
    "node.snapshot_fetched": EventType("A snapshot was fetched.", ("step",)),
    "node.momentum_taken_up": EventType("The node continues with the momentum of its last life."),
    "node.momentum_dropped": EventType("The node drops its momentum and starts with an empty one.", ("reason",)),
    "node.amended": EventType("The organizer has changed the contract from this step on.", ("step", "reason")),
    "node.waiting": EventType("The coordinator has no round open, or the owner lets the node rest.", ("reason",)),
    "node.topology": EventType("The node has a new topology of a gossip run.", ("topology", "peers")),
    "node.peer_left_out": EventType(
        "A peer sent what cannot be taken; the node goes on without it.", ("member", "node_id", "reason")
    ),
    "node.peer_direct": EventType("There is a direct line to a peer.", ("member", "node_id")),
    "node.peer_not_direct": EventType(
        "There is no direct line to a peer, whose messages use the relay meanwhile.", ("member", "node_id", "reason")
    ),
    "node.listening": EventType("The node listens for its peers.", ("port",)),
    "node.deposited": EventType(
        "The node has handed in its parameters at the end of the run.", ("iteration", "refused")
    ),
    "node.waited_for_data": EventType("Training has waited for data, and goes on.", ("waited_s",)),
    "node.shard_skipped": EventType(
        "No source gives a shard, or it cannot be used; its samples are passed over, and it is tried again later.",
        ("blob", "bytes", "reason"),
    ),
    "node.clock_jump": EventType(
        "The coordinator's clock moved against the node's, or the machine slept. slept_s: 0 if it did not.",
        ("slept_s", "reason"),
    ),
    "node.not_counted": EventType("The coordinator refused a contribution.", ("reason", "replica_differs")),
    "node.row_refused": EventType(
        "A row lacks the coordinator's signature. The node applies nothing, and connects again.", ("reason",)
    ),
    "node.resync": EventType("The node discards its parameters and fetches them again.", ("reason",)),
    "node.not_written": EventType(
        "The ready file, or the file for `thinwire-node status`, cannot be written.", ("reason",)
    ),
    "node.report": EventType("The node's report, every 30 seconds if there is no terminal.", ("node",)),
    "node.left": EventType("The node has left with these parameters.", ("step", "fingerprint")),
    "node.left_swarm": EventType("The node has left a gossip run, after these iterations.", ("iteration", "head")),
    "node.totals": EventType(
        "The totals of this life of the node, in its last line. A node that fails before it has joined tells none.",
        ("counted", "not_counted", "dropped", "resyncs", "tokens", "sent_bytes", "received_bytes"),
    ),
    "node.failed": EventType(
        "The program ends with exit status 1, or 2 after a wrong option; the message is the reason."
    ),
}

EVENTS = COORDINATOR | NODE
