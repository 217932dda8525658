"""The most memory that a gossip run takes, beside what any run does (`hall.capacity`)."""

from __future__ import annotations

from thinwire_coordinator.gossip.deposits import deposit_bytes
from thinwire_coordinator.gossip.measurements import NODES_MAX as SKETCHED_MAX
from thinwire_coordinator.gossip.relay import LINES_MAX, RELAY_BYTES_MAX
from thinwire_coordinator.hall.capacity import COPIES, OwnMemory
from thinwire_coordinator.hall.rpc.request_bounds import HEADER_BYTES_MAX
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.consensus import SKETCH_BYTES
from thinwire_proto.wire.parts import PART_BYTES_MAX

LOST_LINE_BYTES = 1 << 10
"""A line of the relay that is lost: the word that waits for its sender, and its entry in a set."""


def gossip_memory(contract: Contract) -> OwnMemory:
    layout, nodes = TileLayout(contract.parameters), contract.round.nodes_max
    named = {
        "relay": relay_bytes(nodes),
        "deposits": deposit_bytes(layout.parameters),
        "sketches": sketches_bytes(nodes),
    }
    return OwnMemory(PART_BYTES_MAX, 0, named)


def relay_bytes(nodes: int) -> int:
    """Parcels that wait, words about lost lines, and for each node a parcel that comes and one that leaves."""
    moving = (COPIES - 1 + COPIES) * (PART_BYTES_MAX + HEADER_BYTES_MAX)
    return RELAY_BYTES_MAX + nodes * (LINES_MAX * LOST_LINE_BYTES + moving)


def sketches_bytes(nodes: int) -> int:
    """The sketches of a measurement, the body that a row names, and three arrays of float64 while they are compared."""
    return min(nodes, SKETCHED_MAX) * SKETCH_BYTES * (COPIES + 3 * 2)
