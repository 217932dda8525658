"""Decides whether a call may begin, before its message is read; and the bounds of all that may arrive.

The bounds follow from the number of nodes that the contract admits. Honest nodes may all be behind one address (a
university, a cloud, a proxy), so the room of one address is that of a full swarm. What tells an attacker apart is
failure: few joins of an honest address fail, so those have a small budget.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace

from thinwire_common.open_files import raise_open_files
from thinwire_coordinator.hall.access.door import Denied, DoorReason


@dataclass(frozen=True)
class Caller:
    """network: see `addresses.network_of`. node_id: of the member whose session the call is in; None for a stranger."""

    network: str
    node_id: str | None = None


class OpenCalls:
    """The calls that were admitted and have not ended. Each table has at most as many keys as there are open calls."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.of_strangers = 0
        self._by_network: Counter[str] = Counter()
        self._by_node: Counter[str] = Counter()

    def __len__(self) -> int:
        return self.of_strangers + self._by_node.total()

    def too_many(self, caller: Caller) -> str:
        """Return the reason why a caller may not open another call now; empty if it may."""
        if caller.node_id is not None:
            full = self._by_node[caller.node_id] >= CALLS_A_SESSION
            return f"this session has {CALLS_A_SESSION} open calls, which is the limit" if full else ""
        if self.of_strangers >= self._bounds.strangers_calls_max:
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
            self.of_strangers += 1
            self._by_network[caller.network] += 1

    def ended(self, caller: Caller) -> None:
        if caller.node_id is not None:
            _count_down(self._by_node, caller.node_id)
        else:
            self.of_strangers -= 1
            _count_down(self._by_network, caller.network)


def _count_down(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


# Order matters: what costs nothing to check comes first, and a refused call takes nothing out of the buckets of others.

EVERYBODY = ""


class AdmissionRules:
    """`now` is in seconds on a clock that never goes back."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.calls = OpenCalls(bounds)
        self._of_networks = TokenBuckets(bounds.strangers_calls)
        self._of_all = TokenBuckets(bounds.strangers_calls_in_all)
        self._failures = TokenBuckets(bounds.failed_joins)
        self._of_nodes = TokenBuckets(bounds.calls_of_a_node, keys_max=2 * bounds.nodes_max)
        self._contributions: OrderedDict[str, tuple[int, int]] = OrderedDict()  # node -> round, how many

    def begin(self, caller: Caller, now: float) -> Denied | None:
        """Admit a call, which then counts as open until `end`; or say why not."""
        if text := self.calls.too_many(caller):
            return Denied(DoorReason.RATE, f"{text}; try again in a moment")
        if caller.node_id is not None:
            if not self._of_nodes.take(caller.node_id, now):
                return Denied(DoorReason.RATE, "this node makes too many calls; update thinwire, or report this")
        elif not self._of_networks.take(caller.network, now):
            wait_s = self._of_networks.wait_s(caller.network, now)
            return Denied(DoorReason.RATE, f"too many calls from your network; try again in {wait_s:.1f} s")
        elif not self._of_all.take(EVERYBODY, now):
            return Denied(DoorReason.RATE, "too many calls from everywhere; try again in a moment")
        self.calls.opened(caller)
        return None

    def end(self, caller: Caller) -> None:
        self.calls.ended(caller)

    def join(self, caller: Caller, known: bool, now: float) -> Denied | None:
        """Whether a Join may be checked, which costs a signature and a look-up.

        known: whether the identity that it claims is enrolled; such a node is not made to wait for its neighbours.
        """
        if known or (wait_s := self._failures.wait_s(caller.network, now)) == 0.0:
            return None
        text = f"too many joins from your network were refused; try again in {wait_s:.0f} s"
        return Denied(DoorReason.RATE, text)

    def join_failed(self, caller: Caller, now: float) -> None:
        self._failures.take(caller.network, now)

    def contribution(self, node_id: str, round_number: int) -> Denied | None:
        """Whether a node may offer another contribution while this round is the newest."""
        counted_in, count = self._contributions.get(node_id, (round_number, 0))
        if counted_in != round_number:
            count = 0
        if count >= CONTRIBUTIONS_A_ROUND:
            text = f"this node has offered {count} contributions in round {round_number}; wait for the next round"
            return Denied(DoorReason.RATE, text)
        self._contributions[node_id] = round_number, count + 1
        self._contributions.move_to_end(node_id)
        if len(self._contributions) > 2 * self.bounds.nodes_max:
            self._contributions.popitem(last=False)
        return None


KEYS_MAX = 1 << 14
"""Buckets that are kept. The one whose last use is the longest ago is forgotten first, and begins full again."""


@dataclass(frozen=True)
class Rate:
    """burst: how many at once. each_s: seconds until one more is allowed."""

    burst: int
    each_s: float


class TokenBuckets:
    """One bucket for each key, each of which begins full. `now` is in seconds on a clock that never goes back."""

    def __init__(self, rate: Rate, keys_max: int = KEYS_MAX) -> None:
        self._rate = rate
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, key: str, now: float) -> float:
        """Seconds until the key's bucket has a token; 0 if it has one now."""
        return max(0.0, (1.0 - self._tokens(key, now)) * self._rate.each_s)

    def take(self, key: str, now: float) -> bool:
        """Take a token out of the key's bucket. Return False, and take none, if there is none."""
        tokens = self._tokens(key, now)
        if tokens < 1.0:
            return False
        self._buckets[key] = tokens - 1.0, now
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return True

    def _tokens(self, key: str, now: float) -> float:
        tokens, since = self._buckets.get(key, (float(self._rate.burst), now))
        return min(float(self._rate.burst), tokens + (now - since) / self._rate.each_s)


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


OWN_FILES = 96
"""Databases, snapshots, bodies and what the libraries have open; a small run has 41 (measured)."""
LEAST = 128
"""The coordinator does not start with fewer."""
A_CONNECTION = 2
"""A node's connection, and the file that it is sent meanwhile."""
PAGE_SHARE = 4
"""The page's connections get at most one in so many of all files."""
PAGE_CONNECTIONS_MAX = 1024
"""A browser uses one connection for its stream, and a few more for its requests."""


def page_connections() -> int:
    """The most connections of the page that this process can have beside those of nodes."""
    return min(PAGE_CONNECTIONS_MAX, (raise_open_files() - OWN_FILES) // PAGE_SHARE)


def open_files_for(bounds: Bounds) -> Bounds:
    """Raise this process's limit of open files as far as `bounds` need it. Return bounds that fit the limit."""
    taken = OWN_FILES + page_connections()
    allowed = raise_open_files(A_CONNECTION * bounds.connections_max + taken)
    return replace(bounds, connections_most=(allowed - taken) // A_CONNECTION)
