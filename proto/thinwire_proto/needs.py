"""Computes what a contract needs of a machine, in bytes, before anything is allocated: the same arithmetic for a
coordinator that plans a run and for a node that is asked to take part in one. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.contract import TILE_EDGE, RunSpec
from thinwire_proto.gossip.lingering import LINGERING_MAX

PROGRAM_BYTES = 350_000_000
"""Interpreter, torch for the CPU, gRPC: what a node of a tiny model holds (VmHWM in a small swarm)."""
NODE_BYTES_A_PARAMETER = 17
"""With what follows, above the measured peak (docs/log/speed.md): parameters, sum of gradients, second moment, and on a
card, or while a snapshot is taken up, one more set of tensors."""
MOMENTUM_BYTES_A_COMPONENT = 4
"""Components are those of whole tiles: a narrow matrix, such as an adapter's, has more of them than parameters."""
SENT_BYTES_A_COMPONENT = 40
"""For each component of a contribution: its votes, what extracting and encoding take meanwhile, and a copy that waits
for its outcome."""
UPDATE_BYTES_A_COMPONENT = 28
"""For each component of an update, while it is decoded and applied."""
WHOLE_SENT_BYTES_A_COMPONENT, LEVELS_BYTES_A_COMPONENT = 4, 8
"""The same where a contribution has whole tiles, and where an update has levels: a byte in each of their copies. The
newest two updates and their bodies are kept."""
LOOK_AHEAD_BYTES_A_PARAMETER = 5
"""More where bases may be older than the newest step (docs/performance.md, peak memory)."""
GOSSIP_BYTES_A_PARAMETER = 60
"""Without a centre: x, the first parameters twice, gradient and its sum, moments, and the journal's tensors again."""
PULLED_BYTES_A_PARAMETER = 4
"""Where gradients are computed, with `exchange.gradient_pull`."""
EDGE_BYTES_A_PARAMETER = 24
"""An edge's two copies, a third while turns are open, and the same in the journal while it is written."""
FROZEN_BYTES_A_PARAMETER = 4
STATE_BYTES_A_PARAMETER = 8
STATE_BYTES_A_COMPONENT = 4
STATE_BYTES_A_SENT_COMPONENT, STATE_BYTES_A_WHOLE_COMPONENT = 24, 2
"""The files of a node: parameters and second moment in float32, the momentum, and two contributions without an outcome.
Twice that while it replaces them."""
JOURNAL_BYTES_A_PARAMETER = 16
"""Without a centre, the journal in its place: x, the first parameters and both moments."""
REPORT_BYTES = 512
"""A node's report in the body and the row of a beat: session, head, figures, signature and two hashes."""
JOURNAL_EDGE_BYTES_A_PARAMETER = 12
"""In it for each edge: two copies, and messages that are not confirmed or whose turn is open."""
SNAPSHOT_BYTES_A_PARAMETER = 4
CACHE_BYTES_MIN = 64 << 20
"""Room for one shard of the data, beside the state, where the data have shards."""


@dataclass(frozen=True)
class Trained:
    """The size of what a node trains. parameters: without padding. matrix_tiles, vector_tiles: of their tensors."""

    parameters: int
    matrix_tiles: int
    vector_tiles: int

    @property
    def components(self) -> int:
        return self.chosen(TILE_EDGE**2)

    def chosen(self, k: int) -> int:
        """The most components of all tiles, if each has at most k."""
        return self.matrix_tiles * min(k, TILE_EDGE**2) + self.vector_tiles * min(k, TILE_EDGE)


def trained_bytes(run: RunSpec, trained: Trained) -> int:
    """Peak memory of a node for its trained parameters: values, gradients, momentum, and copies of them."""
    if run.exchange.kind == "gossip":
        own = GOSSIP_BYTES_A_PARAMETER
        own += PULLED_BYTES_A_PARAMETER if getattr(run.exchange, "gradient_pull", 0) else 0
        return (own + EDGE_BYTES_A_PARAMETER * edges_of_a_node(run)) * trained.parameters
    each = NODE_BYTES_A_PARAMETER + run.rule.MORE_BYTES_A_PARAMETER
    each += LOOK_AHEAD_BYTES_A_PARAMETER if run.round.base_age_max else 0
    travelling = sent_bytes(run, trained) + update_bytes(run, trained)
    return each * trained.parameters + MOMENTUM_BYTES_A_COMPONENT * trained.components + travelling


def sent_bytes(run: RunSpec, trained: Trained) -> int:
    """Memory of a contribution from its extraction until its outcome is known."""
    each = WHOLE_SENT_BYTES_A_COMPONENT if run.demo.sends_whole_tiles else SENT_BYTES_A_COMPONENT
    return each * trained.chosen(run.demo.k)


def update_bytes(run: RunSpec, trained: Trained) -> int:
    """Memory of an update that arrives."""
    demo = run.demo
    if demo.update_levels:
        return LEVELS_BYTES_A_COMPONENT * trained.components
    kept = demo.update_topk or demo.k * run.round.nodes_max
    return UPDATE_BYTES_A_COMPONENT * trained.chosen(kept)


def edges_of_a_node(run: RunSpec) -> int:
    """The most peers with which a node of a swarm without a centre has an edge, on its topology with `round.nodes_max`
    nodes. Edges that have ended and linger count too."""
    nodes, kind = run.round.nodes_max, getattr(run.exchange, "topology", "")
    few = {"ring": 2, "random-regular": 4, "matching": 4}
    if kind in few:
        return min(few[kind] + LINGERING_MAX, nodes - 1)
    if kind in ("one-peer-exponential", "alternating-exponential-ring"):
        return min(2 * nodes.bit_length() + 2 + LINGERING_MAX, nodes - 1)
    return nodes - 1


def samples_at_once(run: RunSpec, micro_batch: int) -> int:
    """The samples of a forward pass on a node that allows `micro_batch`."""
    return min(run.rule.micro_batch_max(micro_batch), run.rule.samples_at_most(run.round.samples))


def state_disk_bytes(run: RunSpec, trained: Trained) -> int:
    """Disk space for a node's own state: its files while they are replaced, and a snapshot that arrives."""
    if run.exchange.kind == "gossip":
        each = JOURNAL_BYTES_A_PARAMETER + JOURNAL_EDGE_BYTES_A_PARAMETER * edges_of_a_node(run)
        files = each * trained.parameters
    else:
        files = STATE_BYTES_A_PARAMETER * trained.parameters + STATE_BYTES_A_COMPONENT * trained.components
        each = STATE_BYTES_A_WHOLE_COMPONENT if run.demo.sends_whole_tiles else STATE_BYTES_A_SENT_COMPONENT
        files += each * trained.chosen(run.demo.k)
    return 2 * files + SNAPSHOT_BYTES_A_PARAMETER * trained.parameters
