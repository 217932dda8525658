"""The most memory that a coordinator takes, whatever arrives: the sum of its bounds, known before it listens.

What strangers and nodes can make the coordinator hold is bounded in `access.bounds`, `swarm.intake`, `swarm.checking`,
`swarm.feed` and here. The rest is the model. Figures that no contract gives were measured (docs/operating.md).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields

from thinwire_common.memory_limit import memory_limit_bytes
from thinwire_common.units import human_bytes
from thinwire_coordinator.access.bounds import Bounds
from thinwire_coordinator.gossip.deposits import deposit_bytes
from thinwire_coordinator.ledger.gossip_consensus import NODES_MAX as SKETCHED_MAX
from thinwire_coordinator.ledger.gossip_rows import has_no_centre
from thinwire_coordinator.rpc.file_parts import FILE_PART_BYTES
from thinwire_coordinator.rpc.relay import LINES_MAX, RELAY_BYTES_MAX
from thinwire_coordinator.rpc.request_bounds import HEADER_BYTES_MAX, REQUEST_BYTES_MAX
from thinwire_coordinator.swarm.checking import UNMERGED_MAX
from thinwire_coordinator.swarm.feed import CACHE_BYTES_MAX, CATCH_UP_BYTES_MAX
from thinwire_coordinator.swarm.intake import arriving_bytes_max
from thinwire_coordinator.swarm.observer import NOTED_VOTES_MAX, ROUNDS_WAITING_MAX
from thinwire_coordinator.trust.audit import REFERENCES_MAX
from thinwire_coordinator.trust.comparison import ENTRIES_MAX
from thinwire_coordinator.trust.earlier_votes import DIGESTS_KEPT, NODES_KEPT, OWN_KEPT, SKETCH
from thinwire_coordinator.trust.trust import NODES_MAX
from thinwire_proto.contract import Contract, DemoSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import CHUNK
from thinwire_proto.gossip.consensus import SKETCH_BYTES
from thinwire_proto.wire.codec import contribution_bytes_max, update_bytes_max
from thinwire_proto.wire.component_codec import MATRIX_RANKED_MAX
from thinwire_proto.wire.parts import PART_BYTES_MAX

PROGRAM_BYTES = 350_000_000
"""Interpreter, torch for the CPU, gRPC: what a program holds with a tiny model (VmHWM in a small swarm)."""
MODEL_BYTES_A_PARAMETER = 6
"""Above the measured peak (docs/performance.md), without the sums: the replica, and a tensor that is measured."""
SUM_BYTES_A_COMPONENT = 2
"""The merged votes. Components are those of whole tiles: a narrow matrix, such as an adapter's, has more of them than
parameters."""
CODES_BYTES_A_TILE = 2 * 256 + 4 * 8
"""Magnitudes of which the median counts: the weight of each code of a tile, and what the median takes."""
FROZEN_BYTES_A_PARAMETER = 4
MERGED_BYTES, MERGED_RANKED_BYTES = 28, 54
"""For each component of an update: the merged votes (10 bytes) and what encoding takes meanwhile (18, measured). It
takes more (44) where a tile's components are ranked, which are few."""
DECODED_BYTES, DECODED_RANKED_BYTES = 20, 50
"""For each component of a contribution that is being decoded: votes (9 bytes) and what decoding takes meanwhile."""
LEVELS_BYTES, WHOLE_BYTES = 4, 3
"""For each component of an update in levels, and of a contribution of whole tiles: a byte, and what coding takes."""
CODEC_BYTES = 64 * CHUNK
"""The memory that either takes, whatever the number of components: eight arrays of a chunk."""
CONNECTION_BYTES = 128 << 10
"""gRPC's state of a connection with TLS, and a window of 64 KiB that nobody has read."""
CALL_BYTES = 32 << 10
"""An open call, in gRPC and as a task."""
FILE_PARTS_MAX = 256
"""Parts of files that are on their way to nodes at the same time."""
COPIES = 3
"""Of a message while it is sent or received: ours, the serialized one, and gRPC's."""
LOST_LINE_BYTES = 1 << 10
"""A line of the relay that is lost: the word that waits for its sender, and its entry in a set."""
TABLES_BYTES = 96 << 20
"""Token buckets, answered challenges, counts of nodes, members, histories: each table has a greatest length."""
NOTED_VOTE_BYTES = 9
"""A vote that is kept for comparison: its component and its sign."""
COMPARED_VOTE_BYTES = 64
"""A vote that is being compared: sorted, counted and placed in the table."""
PAIR_BYTES = 24
"""Each pair of a round's contributions: six numbers of 4 bytes."""
STANDING_BYTES = 2304
"""A node that every test suspects, with the words. Measured: 2,043 bytes, and 46 while they are read."""
JUDGED_BYTES = 2 << 10
"""Each contribution of a round while trust takes its evidence: evidence, decisions, weight and record. Measured:
1,315."""
DIGEST_BYTES = 256
AUDIT_BYTES_A_PARAMETER = 20
"""An audit: the parameters as far as they are in use, the model while it is made, two gradients, and their scale.
Counted by operations, without the samples' activations: 15.6, and 12 if a lease is computed in one pass, as that of a
large model is. Then the process takes about half."""
AUDIT_BYTES_A_COMPONENT = 1
"""Whether a component is among those that an audit looks at."""
AUDITED_COMPONENT_BYTES = 12
"""One that is: its number, and the gradients' difference."""
AUDITED_VOTE_BYTES = 48
"""A vote of the one ballot that is being followed: its place, the difference there, the square, and the sum's terms."""
ALLOCATOR = 1.25
"""Memory that the allocator keeps beside what is used, as a factor."""


@dataclass(frozen=True)
class MemoryBound:
    """In bytes. The fields add up to `total_bytes`, before the allocator's share. A run has either those of the votes
    that a coordinator merges or those of its nodes' own parameters, from `relay` on; the others are 0."""

    program: int
    model: int
    requests: int
    files: int
    connections: int
    tables: int
    merging: int = 0
    decoding: int = 0
    contributions: int = 0
    updates: int = 0
    trust: int = 0
    audits: int = 0
    relay: int = 0
    deposits: int = 0
    sketches: int = 0

    @property
    def total_bytes(self) -> int:
        held: int = sum(getattr(self, field.name) for field in fields(self)) - self.program
        return self.program + round(ALLOCATOR * held)

    def in_words(self) -> str:
        named = [(field.name, getattr(self, field.name)) for field in fields(self)]
        parts = ", ".join(f"{name} {human_bytes(bytes_)}" for name, bytes_ in named if bytes_)
        return f"at most {human_bytes(self.total_bytes)} whatever arrives: {parts}"


def machine_bytes() -> int:
    """Memory of this machine, or of its container or service if that has less."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize
    limit = memory_limit_bytes()
    return most if limit is None else min(most, limit)


def memory_bound(
    contract: Contract, bounds: Bounds, frozen: int = 0, *, audits: bool = True, activations: int = 0
) -> MemoryBound:
    """The bound of a run. frozen: parameters that are not trained. audits: whether contributions are audited, if it has
    any. activations: bytes that the samples of an audit take at a time, beside parameters and gradients."""
    layout, nodes, has_centre = TileLayout(contract.parameters), contract.round.nodes_max, not has_no_centre(contract)
    held_frozen = FROZEN_BYTES_A_PARAMETER * frozen
    part = (min(_payload_bytes(contract, layout), PART_BYTES_MAX) if has_centre else PART_BYTES_MAX) + HEADER_BYTES_MAX
    votes = _votes_bytes(contract, layout) if has_centre else {}
    if audits and has_centre:
        votes["audits"] = audit_bytes(layout, layout.selected_max(contract.demo.k)) + held_frozen + activations
    return MemoryBound(
        program=PROGRAM_BYTES,
        model=MODEL_BYTES_A_PARAMETER * layout.parameters + held_frozen + (sums_bytes(contract) if has_centre else 0),
        requests=(COPIES - 1) * (nodes * part + bounds.strangers_calls_max * REQUEST_BYTES_MAX),
        files=COPIES * FILE_PARTS_MAX * FILE_PART_BYTES,
        connections=bounds.connections_max * CONNECTION_BYTES + bounds.calls_max * CALL_BYTES,
        tables=TABLES_BYTES,
        relay=0 if has_centre else relay_bytes(nodes),
        deposits=0 if has_centre else deposit_bytes(layout.parameters),
        sketches=0 if has_centre else sketches_bytes(nodes),
        **votes,
    )


def _payload_bytes(contract: Contract, layout: TileLayout) -> int:
    """The largest contribution."""
    demo = contract.demo
    return contribution_bytes_max(layout, demo.k, demo.magnitude, whole=demo.sends_whole_tiles)


def _votes_bytes(contract: Contract, layout: TileLayout) -> dict[str, int]:
    """What merged votes take, without audits, by field of the bound."""
    demo, nodes = contract.demo, contract.round.nodes_max
    payload, selected = _payload_bytes(contract, layout), layout.selected_max(demo.k)
    update = update_bytes_max(layout, demo.magnitude, demo.update_levels)
    merged = min(layout.components, nodes * selected)
    if demo.update_topk:
        merged = min(merged, layout.selected_max(demo.update_topk))
    if not demo.update_levels:
        update = min(update, update * merged // layout.components + PART_BYTES_MAX)
    return {
        "merging": _merging_bytes(demo, layout, merged),
        "decoding": UNMERGED_MAX * _decoding_bytes(demo, layout),
        "contributions": arriving_bytes_max(nodes, payload) + payload,  # the newest is copied as it is complete
        "updates": max(CACHE_BYTES_MAX, update) + max(CATCH_UP_BYTES_MAX, 2 * update) + COPIES * update,
        "trust": _trust_bytes(nodes, selected),
    }


def _merging_bytes(demo: DemoSpec, layout: TileLayout, merged: int) -> int:
    if demo.update_levels:
        return LEVELS_BYTES * layout.components + CODEC_BYTES
    return _coding_bytes(layout, merged, MERGED_BYTES, MERGED_RANKED_BYTES)


def _decoding_bytes(demo: DemoSpec, layout: TileLayout) -> int:
    if demo.sends_whole_tiles:
        return WHOLE_BYTES * layout.components + CODEC_BYTES
    return _coding_bytes(layout, layout.selected_max(demo.k), DECODED_BYTES, DECODED_RANKED_BYTES)


def _coding_bytes(layout: TileLayout, components: int, each: int, each_ranked: int) -> int:
    """Memory while so many components are encoded or decoded."""
    ranked = min(components, layout.selected_max(MATRIX_RANKED_MAX))
    return max(each * components, each_ranked * ranked) + min(CODEC_BYTES, each_ranked * components)


def _trust_bytes(nodes: int, selected: int) -> int:
    """Votes of the rounds that are noted, waiting or compared, those of earlier rounds, and what is known of nodes.

    selected: votes of a contribution, at most.
    """
    noted = min(nodes * selected, NOTED_VOTES_MAX)
    comparing = comparing_bytes(nodes, noted, min(ENTRIES_MAX + nodes, nodes * noted))
    references = REFERENCES_MAX * min(selected, NOTED_VOTES_MAX)
    kept = NOTED_VOTE_BYTES * ((1 + ROUNDS_WAITING_MAX) * noted + references)
    sketches = NODES_KEPT * OWN_KEPT * SKETCH * 8 + DIGESTS_KEPT * DIGEST_BYTES
    return comparing + kept + sketches + NODES_MAX * STANDING_BYTES + nodes * JUDGED_BYTES


def relay_bytes(nodes: int) -> int:
    """Parcels that wait, words about lost lines, and for each node a parcel that comes and one that leaves."""
    moving = (COPIES - 1 + COPIES) * (PART_BYTES_MAX + HEADER_BYTES_MAX)
    return RELAY_BYTES_MAX + nodes * (LINES_MAX * LOST_LINE_BYTES + moving)


def sketches_bytes(nodes: int) -> int:
    """The sketches of a measurement, the body that a row names, and three arrays of float64 while they are compared."""
    return min(nodes, SKETCHED_MAX) * SKETCH_BYTES * (COPIES + 3 * 2)


def comparing_bytes(nodes: int, noted: int, entries: int) -> int:
    """A comparison of so many contributions, with so many votes together. entries: numbers in the table, of which there
    is another with their absolute values."""
    return COMPARED_VOTE_BYTES * noted + 2 * 4 * entries + PAIR_BYTES * nodes**2


def sums_bytes(contract: Contract) -> int:
    """The sums of a round's votes; see `thinwire_proto.exact.aggregation.merger_of`."""
    layout = TileLayout(contract.parameters)
    sizes = CODES_BYTES_A_TILE * layout.tiles if contract.demo.magnitude == "tile" else 0
    return SUM_BYTES_A_COMPONENT * layout.components + sizes


def audit_bytes(layout: TileLayout, selected: int) -> int:
    """An audit, without frozen parameters and activations. selected: votes of a contribution, at most."""
    ballot = min(selected, NOTED_VOTES_MAX)
    looked_at = AUDITED_COMPONENT_BYTES * min(layout.components, (REFERENCES_MAX + 2) * ballot)
    found = AUDIT_BYTES_A_COMPONENT * layout.components + looked_at + AUDITED_VOTE_BYTES * ballot
    return AUDIT_BYTES_A_PARAMETER * layout.parameters + found
