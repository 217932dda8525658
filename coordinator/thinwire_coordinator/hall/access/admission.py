"""Decides whether a call may begin, by the numbers in `bounds`, before its message is read."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass
from urllib.parse import unquote

from thinwire_coordinator.hall.access.bounds import CALLS_A_SESSION, CONTRIBUTIONS_A_ROUND, Bounds, TokenBuckets
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason

IPV6_PREFIX_BITS = 64
"""A household or a server has a whole /64, and may call from each of its 2⁶⁴ addresses."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Caller:
    """network: see `network_of`. node_id: of the member whose session the call is in; None for a stranger."""

    network: str
    node_id: str | None = None


def network_of(peer: str) -> str:
    """The IPv4 address or the IPv6 /64 of a peer.

    peer: as gRPC names it: `ipv4:192.0.2.1:5000`, `ipv6:%5B2001:db8::1%5D:5000`. Peers that have no address, such as
    those of a Unix socket, share one name.
    """
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    if kind not in ("ipv4", "ipv6"):
        return UNKNOWN
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:  # a socket for both families shows IPv4 so
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))


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
