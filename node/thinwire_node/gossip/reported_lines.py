"""The lines of a node, as its reports to the coordinator have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from thinwire_common.traffic import Traffic
from thinwire_node.gossip.lines_port import Lines
from thinwire_proto.gossip.seen_lines import SeenEdge, SeenLines


def seen_lines(lines: Lines, peers: Collection[int], heard: Mapping[int, int], traffic: Traffic) -> SeenLines:
    """The lines to these peers. heard: by peer, the iteration of its newest message."""
    direct, present = lines.direct, lines.present
    edges = tuple(
        SeenEdge(
            peer,
            "direct" if peer in direct else "relay" if peer in present else "away",
            heard.get(peer),
        )
        for peer in sorted(peers)
    )
    return SeenLines(traffic.peers_sent["direct"], traffic.peers_received["direct"], edges)
