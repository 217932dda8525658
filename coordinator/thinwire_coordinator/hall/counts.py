"""All counts of a coordinator since its process started.

No other module adds up counts. `Counts` is the first watcher of a swarm's events; the status call, the page and the
metrics read it. Bytes are counted where gRPC parses and serializes messages (`rpc.server`). Bytes of a single node are
counted in `rpc.service`, which knows the node.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from thinwire_common.traffic import Traffic
from thinwire_coordinator.hall.access.door import DoorReason
from thinwire_coordinator.hall.events import (
    TIME_IS_UP,
    BeatSealed,
    ContributionOffered,
    ContributionRefused,
    ContributionTaken,
    Event,
    FingerprintCompared,
    NodeCame,
    NodeJudged,
    NodeWent,
    PartJudged,
    Refused,
    RoundSealed,
    RoundVoid,
    Verdict,
)
from thinwire_proto.all_reduce import ring_bytes_of_all
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.rows import Counted

NODES_MAX = 65_536
"""When twice this many nodes have counts, only this many are kept: those with the most tokens."""

DIRECT_BYTES_MAX = 1 << 45
"""Bytes of direct lines that are believed of a node, so that no sum of all nodes is beyond 64 bits."""
DIRECT_RATE_BYTES_MAX = 1_250_000_000
"""The most of these bytes for each second that this process has run: 10 Gbit/s in each direction."""


@dataclass
class NodeCounts:
    """The counts of one node.

    counted, not_counted: contributions. dropped: micro-batches that the node dropped. compute_s: time that the node
    computed; dropped and compute_s are as the node reports them. lost: how often the node disappeared without leaving.
    bytes_fetched: bytes of snapshots, of the corpus and of blobs.

    In a gossip run, relay_up and relay_down are bytes of parcels to and from the relay, direct_up and
    direct_down those of direct lines, as the node reports them; bytes_up and bytes_down have both. direct_seen: its
    newest report of them. iteration, loss: of its newest sealed report.
    """

    counted: int = 0
    not_counted: int = 0
    tokens: int = 0
    dropped: int = 0
    compute_s: float = 0.0
    lost: int = 0
    replica_equal: bool | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_fetched: int = 0
    relay_up: int = 0
    relay_down: int = 0
    direct_up: int = 0
    direct_down: int = 0
    direct_seen: tuple[int, int] = (0, 0)
    iteration: int = 0
    loss: float | None = None


class Counts:
    """The counts of the whole swarm and of each node. Only this module, and `rpc` for bytes, may change them.

    parameters: number of the model's parameters.
    """

    def __init__(self, parameters: int) -> None:
        self._parameters = parameters
        self.traffic = Traffic()
        self.nodes: dict[str, NodeCounts] = {}
        """By node id; `of` adds missing entries."""
        self.rounds_sealed: Counter[str] = Counter()
        """By how they ended: `everybody` (all awaited nodes contributed) or `time`."""
        self.rounds_void: Counter[str] = Counter()
        self.beats = 0
        """Rows with the reports of a beat, in a gossip run."""
        self.counted = 0
        """Contributions in sealed updates; reports in beats."""
        self.not_counted: Counter[Reason] = Counter()
        """Contributions that were not counted, by the receipt's reason."""
        self.fingerprints_equal = 0
        self.fingerprints_different = 0
        self.tokens = 0
        self.samples_skipped = 0
        """Tokens in counted contributions."""
        self.votes = 0
        self.votes_bytes = 0
        self.update_components = 0
        self.update_bytes = 0
        self.dense_bytes = 0
        """Bytes that all-reducing whole gradients would have sent; it would have received as many."""
        self.refused: Counter[tuple[str, DoorReason]] = Counter()
        """What was refused: calls by the guard of the port, and joins by the door."""
        self.judged: Counter[Verdict] = Counter()
        """Decisions about the trust in nodes."""
        self.came = 0
        self.left = 0
        self.lost = 0
        self.evaluation_parts: Counter[str] = Counter()
        """Parts of held-out measurements, by what became of them; see `PartJudged`."""
        self.direct_up = 0
        self.direct_down = 0
        """Bytes between nodes on direct lines, as they report them."""
        self.loss_training: float | None = None
        """Training loss of the newest sealed update."""

    @property
    def bytes_up(self) -> int:
        """Bytes that nodes have sent to train: contributions, or parcels to the relay and to each other."""
        return self.traffic.received.bytes["contribution"] + self.traffic.received.bytes["parcel"] + self.direct_up

    @property
    def bytes_down(self) -> int:
        """Bytes that nodes have received to train: updates, or parcels from the relay and from each other."""
        return self.traffic.sent.bytes["update"] + self.traffic.sent.bytes["parcel"] + self.direct_down

    @property
    def bytes_fetched(self) -> int:
        return sum(self.traffic.sent.bytes[kind] for kind in ("snapshot", "corpus", "blob"))

    @property
    def fingerprints_compared(self) -> int:
        return self.fingerprints_equal + self.fingerprints_different

    def of(self, node_id: str) -> NodeCounts:
        """The counts of a node; they survive when the node leaves."""
        found = self.nodes.get(node_id)
        if found is None:
            if len(self.nodes) >= 2 * NODES_MAX:
                by_tokens = sorted(self.nodes.items(), key=lambda item: item[1].tokens, reverse=True)
                self.nodes = dict(by_tokens[:NODES_MAX])
            found = self.nodes[node_id] = NodeCounts()
        return found

    def believed_s(self, node_id: str, compute_ms: int, elapsed_s: float) -> float:
        """The seconds that are believed of a node which says that it computed: no node has computed for longer than
        this process has run. elapsed_s: since it began."""
        return max(0.0, min(compute_ms / 1000, elapsed_s - self.of(node_id).compute_s))

    def direct_is(
        self, node_id: str, sent: int, received: int, elapsed_s: float = math.inf, *, is_older: bool = False
    ) -> None:
        """Count what a node reports of its direct lines: sums since its process started, so that smaller ones are those
        of a new process. elapsed_s: since this process began. is_older: they are of the time before that, and count
        nothing."""
        node = self.of(node_id)
        if is_older:
            node.direct_seen = (sent, received)
        before_up, before_down = node.direct_seen
        is_new = sent < before_up or received < before_down
        up, down = (sent, received) if is_new else (sent - before_up, received - before_down)
        node.direct_seen = (sent, received)
        most = round(min(DIRECT_BYTES_MAX, max(1.0, elapsed_s) * DIRECT_RATE_BYTES_MAX))
        up, down = min(up, most - node.direct_up), min(down, most - node.direct_down)
        node.direct_up, node.direct_down = node.direct_up + up, node.direct_down + down
        node.bytes_up, node.bytes_down = node.bytes_up + up, node.bytes_down + down
        self.direct_up, self.direct_down = self.direct_up + up, self.direct_down + down

    def watch(self, event: Event) -> None:
        """Add an event to the counts. The most frequent events come first in the match."""
        match event:
            case ContributionOffered():
                node = self.of(event.node_id)
                node.dropped += event.dropped
                node.compute_s += event.compute_s
                self.samples_skipped += event.skipped
            case FingerprintCompared():
                self.of(event.node_id).replica_equal = event.equal
                self.fingerprints_equal += event.equal
                self.fingerprints_different += not event.equal
            case ContributionTaken():
                self.votes += event.components
                self.votes_bytes += event.payload_bytes
            case ContributionRefused():
                self.of(event.node_id).not_counted += 1
                self.not_counted[event.reason] += 1
            case RoundSealed():
                self._seal(event)
            case BeatSealed():
                self._count(event)
            case RoundVoid():
                self.rounds_void[_end_of(event.why)] += 1
            case PartJudged():
                self.evaluation_parts[event.result] += 1
            case _:
                self._watch_nodes(event)

    def _watch_nodes(self, event: Event) -> None:
        """Add an event that tells of the coming and going of a node, or of the trust in it."""
        match event:
            case NodeCame():
                self.came += 1
            case Refused():
                self.refused[event.what, event.reason] += 1
            case NodeJudged():
                self.judged[event.verdict] += 1
            case NodeWent():
                self.of(event.node_id).lost += event.lost
                self.lost += event.lost
                self.left += not event.lost

    def _seal(self, event: RoundSealed) -> None:
        self.rounds_sealed[_end_of(event.why)] += 1
        self.tokens += event.tokens
        self.update_components += event.components
        self.update_bytes += event.update_bytes
        self.dense_bytes += ring_bytes_of_all(len(event.counted), self._parameters)
        self.loss_training = event.loss
        tokens_a_sample = event.tokens // max(1, sum(entry.samples for entry in event.counted))
        self._credit(event.counted, tokens_a_sample)

    def _count(self, event: BeatSealed) -> None:
        self.beats += 1
        self.tokens += event.tokens
        ring = ring_bytes_of_all(event.members, self._parameters) / max(1, event.members)
        self.dense_bytes += round(ring * event.iterations_done)
        if math.isfinite(event.loss):
            self.loss_training = event.loss
        self._credit(event.counted, event.tokens_a_sample)
        for node, progress in event.progress.items():
            counts = self.of(node)
            counts.iteration = max(counts.iteration, progress.iteration)
            counts.loss = counts.loss if progress.loss is None else progress.loss

    def _credit(self, counted: tuple[Counted, ...], tokens_a_sample: int) -> None:
        self.counted += len(counted)
        for entry in counted:
            node = self.of(entry.node)
            node.counted += 1
            node.tokens += entry.samples * tokens_a_sample


def _end_of(why: str) -> str:
    return "time" if why.startswith(TIME_IS_UP) else "everybody"
