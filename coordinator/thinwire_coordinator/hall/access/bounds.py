"""Bounds of all that may arrive at the coordinator, derived from the number of nodes that the contract admits.

Honest nodes may all be behind one address (a university, a cloud, a proxy), so the room of one address is that of a
full swarm. What tells an attacker apart is failure: few joins of an honest address fail, so those have a small budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.hall.access.token_buckets import Rate

CONNECTIONS_A_NODE = 2
"""One in use, and one that the other end may not have given up yet."""
CONNECTIONS_OF_STRANGERS = 512
STREAMS_A_CONNECTION = 32
"""A node has up to `CALLS_A_SESSION` open, and opens others while those end."""
CALLS_A_SESSION = 8
STRANGERS_CALLS = 64
"""Open calls without a session in a tiny swarm; `Bounds.strangers_calls_max` adds one for sixteen nodes."""
CONTRIBUTIONS_A_ROUND = 8
"""One, and what a node sends again after lost connections."""
REFUSALS_WAITING_MAX = 512
"""Refused calls whose answer waits, so that a caller that ignores refusals is slowed. More are answered at once."""


@dataclass(frozen=True)
class Bounds:
    """nodes_max: of the contract. behind_proxy: whether all nodes come over the connections of one proxy.

    connections_most: what the system allows, if that is less than what the nodes may need.
    """

    nodes_max: int
    behind_proxy: bool = False
    connections_most: int | None = None

    @property
    def connections_max(self) -> int:
        wanted = CONNECTIONS_A_NODE * self.nodes_max + CONNECTIONS_OF_STRANGERS
        return wanted if self.connections_most is None else min(wanted, self.connections_most)

    @property
    def streams_a_connection(self) -> int:
        return self.calls_max if self.behind_proxy else STREAMS_A_CONNECTION

    @property
    def calls_max(self) -> int:
        """Open calls in all. It is not what stops an attacker, because honest nodes would then be refused as well."""
        return CALLS_A_SESSION * self.nodes_max + self.strangers_calls_max + REFUSALS_WAITING_MAX

    @property
    def strangers_calls_max(self) -> int:
        """Open calls without a session, such as Hello and Join. Each takes milliseconds."""
        return STRANGERS_CALLS + self.nodes_max // 16

    @property
    def strangers_calls_a_network(self) -> int:
        return self.strangers_calls_max // 2

    @property
    def strangers_calls(self) -> Rate:
        """Calls without a session from one network: all nodes may come back at once, with three calls each."""
        return Rate(burst=3 * self.nodes_max + 256, each_s=0.02)

    @property
    def strangers_calls_in_all(self) -> Rate:
        """The same from all networks together."""
        return Rate(burst=2 * self.strangers_calls.burst, each_s=0.005)

    @property
    def failed_joins(self) -> Rate:
        """Joins of one network that may be refused before it has to wait."""
        return Rate(burst=32, each_s=2.0)

    @property
    def calls_of_a_node(self) -> Rate:
        """Calls in one session. A node makes a few in a round, and a round may be as short as 50 ms."""
        return Rate(burst=512, each_s=0.005)
