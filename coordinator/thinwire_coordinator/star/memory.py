"""The most memory that a star run takes, beside what any run does (`hall.capacity`)."""

from __future__ import annotations

from thinwire_coordinator.hall.capacity import COPIES, OwnMemory
from thinwire_coordinator.star.checking import UNMERGED_MAX
from thinwire_coordinator.star.feed import CACHE_BYTES_MAX, CATCH_UP_BYTES_MAX
from thinwire_coordinator.star.intake import arriving_bytes_max
from thinwire_coordinator.star.trust.audit import REFERENCES_MAX
from thinwire_coordinator.star.trust.auditing import BATCH, samples_of
from thinwire_coordinator.star.trust.comparison import ENTRIES_MAX
from thinwire_coordinator.star.trust.earlier_votes import DIGESTS_KEPT, NODES_KEPT, OWN_KEPT, SKETCH
from thinwire_coordinator.star.trust.observer import NOTED_VOTES_MAX, ROUNDS_WAITING_MAX
from thinwire_coordinator.star.trust.trust import NODES_MAX
from thinwire_proto.activations import activations_of
from thinwire_proto.contract import Contract, DemoSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import CHUNK
from thinwire_proto.task import task_of
from thinwire_proto.wire.codec import contribution_bytes_max, update_bytes_max
from thinwire_proto.wire.component_codec import MATRIX_RANKED_MAX
from thinwire_proto.wire.parts import PART_BYTES_MAX

SUM_BYTES_A_COMPONENT = 2
"""The merged votes. Components are those of whole tiles: a narrow matrix, such as an adapter's, has more of them than
parameters."""
CODES_BYTES_A_TILE = 2 * 256 + 4 * 8
"""Magnitudes of which the median counts: the weight of each code of a tile, and what the median takes."""
STATE_BYTES_A_VALUE = 4
"""The parameters and moments of the step that the run goes back to, beside those that it has."""
MERGED_BYTES, MERGED_RANKED_BYTES = 28, 54
"""For each component of an update: the merged votes (10 bytes) and what encoding takes meanwhile (18, measured). It
takes more (44) where a tile's components are ranked, which are few."""
DECODED_BYTES, DECODED_RANKED_BYTES = 20, 50
"""For each component of a contribution that is being decoded: votes (9 bytes) and what decoding takes meanwhile."""
LEVELS_BYTES, WHOLE_BYTES = 4, 3
"""For each component of an update in levels, and of a contribution of whole tiles: a byte, and what coding takes."""
CODEC_BYTES = 64 * CHUNK
"""The memory that either takes, whatever the number of components: eight arrays of a chunk."""
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


def star_memory(contract: Contract, frozen: int = 0, *, audits: bool = True, activations: int = 0) -> OwnMemory:
    """audits: whether contributions are audited. activations: bytes that the samples of an audit take at a time, beside
    parameters and gradients. frozen: bytes of what is not trained."""
    layout = TileLayout(contract.parameters)
    named = _votes_bytes(contract, layout)
    if audits:
        named["audits"] = audit_bytes(layout, layout.selected_max(contract.demo.k)) + frozen + activations
    named["going back"] = STATE_BYTES_A_VALUE * contract.state_elements
    moments = contract.rule.MOMENT_BYTES_A_PARAMETER * layout.parameters
    model = sums_bytes(contract) + moments + contract.rule.step_bytes(contract.parameters)
    return OwnMemory(min(_payload_bytes(contract, layout), PART_BYTES_MAX), model, named)


def audit_activation_bytes(contract: Contract) -> int:
    """Memory of the samples that an audit computes at a time, beside parameters and gradients. 0 if the pass cannot be
    traced (`thinwire_proto.activations`)."""
    samples = min(BATCH, samples_of(contract, TileLayout(contract.parameters).parameters))
    return samples * activations_of(task_of(contract.model), contract.model).whole


def _payload_bytes(contract: Contract, layout: TileLayout) -> int:
    """The largest contribution."""
    demo = contract.demo
    return contribution_bytes_max(layout, demo.k, demo.magnitude, whole=demo.sends_whole_tiles, levels=demo.vote_levels)


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
