"""How long messages take between members, as those that get them report it. Pure.

Only pairs with an edge are measured. Any other pair is taken to be as fast as the fastest message from the one and the
fastest to the other. That is hopeful. If it misleads a placement, the new edges are measured, and the next one knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from thinwire_coordinator.gossip.formation import FormedTopology
from thinwire_proto.gossip.placement import Floats
from thinwire_proto.gossip.seen_lines import SeenEdge


class MeasuredLines:
    """The newest time of each pair that has had an edge."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}  # by sender and receiver

    def __len__(self) -> int:
        return len(self._seconds)

    def take(self, receiver: int, edges: Iterable[SeenEdge], topology: FormedTopology) -> None:
        """Take the report of a member. Messages that a peer sends at once in this topology share its line, and each
        takes as long as all of them."""
        for edge in edges:
            if edge.message_ms is not None:
                at_once = max(1, topology.messages_at_once(edge.member))
                self._seconds[edge.member, receiver] = edge.message_ms / 1000 / at_once

    def keep(self, members: Collection[int]) -> None:
        """Forget all others."""
        kept = frozenset(members)
        self._seconds = {ends: found for ends, found in self._seconds.items() if kept.issuperset(ends)}

    def are_known(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Whether all of these senders and receivers were measured."""
        return all(pair in self._seconds for pair in pairs)

    def matrix(self, members: Sequence[int]) -> Floats:
        """Seconds of a message by sender and receiver, [n, n], in the order of the members."""
        known = np.full((len(members), len(members)), np.nan)
        for row, sender in enumerate(members):
            for column, receiver in enumerate(members):
                known[row, column] = self._seconds.get((sender, receiver), np.nan)
        fastest_from = np.fmin.reduce(known, axis=1, initial=np.inf)
        fastest_to = np.fmin.reduce(known, axis=0, initial=np.inf)
        hoped = np.maximum(fastest_from[:, None], fastest_to[None, :])
        return np.where(np.isnan(known), np.where(np.isinf(hoped), 0.0, hoped), known)
