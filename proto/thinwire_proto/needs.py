"""Computes what a contract needs of a machine, in bytes, before anything is allocated: the same arithmetic for a
coordinator that plans a run and for a node that is asked to take part in one. Needs no torch."""

from __future__ import annotations

from thinwire_proto.contract import RunSpec
from thinwire_proto.gossip.lingering import LINGERING_MAX

PROGRAM_BYTES = 350_000_000
"""Interpreter, torch for the CPU, gRPC: what a node of a tiny model holds (VmHWM in a small swarm)."""
NODE_BYTES_A_PARAMETER = 24
"""Above the measured peak (docs/log/speed.md): parameters, sum of gradients, momentum, second moment, and on a card, or
while a snapshot is taken up, one more set of tensors."""
LOOK_AHEAD_BYTES_A_PARAMETER = 5
"""More where bases may be older than the newest step (docs/performance.md, peak memory)."""
LOCAL_ADAMW_BYTES_A_PARAMETER = 8
"""More with local steps: five values for each parameter in place of three (docs/local-rules.md)."""
GOSSIP_BYTES_A_PARAMETER = 60
"""Without a centre: x, the first parameters twice, gradient and its sum, moments, and the journal's tensors again."""
EDGE_BYTES_A_PARAMETER = 24
"""An edge's two copies, a third while turns are open, and the same in the journal while it is written."""
FROZEN_BYTES_A_PARAMETER = 4
STATE_BYTES_A_PARAMETER = 12
"""The files of a node: parameters, momentum and second moment in float32. Twice that while it replaces them."""
JOURNAL_BYTES_A_PARAMETER = 16
"""Without a centre, the journal in its place: x, the first parameters and both moments."""
JOURNAL_EDGE_BYTES_A_PARAMETER = 12
"""In it for each edge: two copies, and messages that are not confirmed or whose turn is open."""
SNAPSHOT_BYTES_A_PARAMETER = 4


def trained_bytes(run: RunSpec, trained: int) -> int:
    """Peak memory of a node for its trained parameters: values, gradients, momentum, and copies of them."""
    if run.exchange.kind == "gossip":
        return (GOSSIP_BYTES_A_PARAMETER + EDGE_BYTES_A_PARAMETER * edges_of_a_node(run)) * trained
    each = NODE_BYTES_A_PARAMETER
    each += LOOK_AHEAD_BYTES_A_PARAMETER if run.round.base_age_max else 0
    each += LOCAL_ADAMW_BYTES_A_PARAMETER if run.rule.kind == "local_adamw" else 0
    return each * trained


def edges_of_a_node(run: RunSpec) -> int:
    """The most peers with which a node of a swarm without a centre has an edge, on its topology with `round.nodes_max`
    nodes. Edges that have ended and linger count too."""
    nodes, kind = run.round.nodes_max, getattr(run.exchange, "topology", "")
    few = {"ring": 2, "tree": 3, "random-regular": 4, "matching": 4}
    if kind in few:
        return min(few[kind] + LINGERING_MAX, nodes - 1)
    if kind in ("one-peer-exponential", "alternating-exponential-ring"):
        return min(2 * nodes.bit_length() + 2 + LINGERING_MAX, nodes - 1)
    return nodes - 1


def samples_at_once(run: RunSpec, micro_batch: int) -> int:
    """The samples of a forward pass on a node that allows `micro_batch`."""
    return min(run.rule.micro_batch_max(micro_batch), run.rule.samples_at_most(run.round.samples))


def state_disk_bytes(run: RunSpec, trained: int) -> int:
    """Disk space for a node's own state: its files while they are replaced, and a snapshot that arrives."""
    each = STATE_BYTES_A_PARAMETER
    if run.exchange.kind == "gossip":
        each = JOURNAL_BYTES_A_PARAMETER + JOURNAL_EDGE_BYTES_A_PARAMETER * edges_of_a_node(run)
    return (2 * each + SNAPSHOT_BYTES_A_PARAMETER) * trained
