"""Counts open calls: of strangers, in all and by network, and of each session."""

from __future__ import annotations

from collections import Counter

from thinwire_coordinator.hall.access.bounds import CALLS_A_SESSION, Bounds
from thinwire_coordinator.hall.access.callers import Caller


class OpenCalls:
    """The calls that were admitted and have not ended. Each table has at most as many keys as there are open calls."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._of_strangers = 0
        self._by_network: Counter[str] = Counter()
        self._by_node: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of_strangers + self._by_node.total()

    @property
    def of_strangers(self) -> int:
        return self._of_strangers

    def too_many(self, caller: Caller) -> str:
        """Return the reason why a caller may not open another call now; empty if it may."""
        if caller.node_id is not None:
            full = self._by_node[caller.node_id] >= CALLS_A_SESSION
            return f"this session has {CALLS_A_SESSION} open calls, which is the limit" if full else ""
        if self._of_strangers >= self._bounds.strangers_calls_max:
            return "too many nodes join at this moment"
        if self.network_is_full(caller.network):
            return "too many nodes of your network join at this moment"
        return ""

    def network_is_full(self, network: str) -> bool:
        return self._by_network[network] >= self._bounds.strangers_calls_a_network

    def opened(self, caller: Caller) -> None:
        if caller.node_id is not None:
            self._by_node[caller.node_id] += 1
        else:
            self._of_strangers += 1
            self._by_network[caller.network] += 1

    def ended(self, caller: Caller) -> None:
        if caller.node_id is not None:
            _count_down(self._by_node, caller.node_id)
        else:
            self._of_strangers -= 1
            _count_down(self._by_network, caller.network)


def _count_down(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
