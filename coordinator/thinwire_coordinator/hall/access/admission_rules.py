"""Decides whether a call may begin, by the numbers in `bounds`, before its message is read.

Order matters: what costs nothing to check comes first, and a refused call takes nothing out of the buckets of others.
"""

from __future__ import annotations

from collections import OrderedDict

from thinwire_coordinator.hall.access.bounds import CONTRIBUTIONS_A_ROUND, Bounds
from thinwire_coordinator.hall.access.callers import Caller
from thinwire_coordinator.hall.access.open_calls import OpenCalls
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason
from thinwire_coordinator.hall.access.token_buckets import TokenBuckets

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
