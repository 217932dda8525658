"""Brings what the organizer has ordered into force, from an iteration on that no node has come to.

The problem: nodes are at different iterations, and go on while the coordinator or their line to it is away. An
amendment that held at once would have nodes take the same iteration under two contracts, and another end would leave
some behind.

The sketch: a node does no iteration without a lease, and hears of its lease in the answer to a report. The coordinator
remembers up to which iteration any answer has let a node go (`Directory.reach`), and the amendment holds from there on.
From then on it gives no more lease to a node whose report does not say that it has the amendment. The node keeps to its
side in `GossipTraining`: with the iteration of a peer it takes no lease along.

It is on disk beside the directory before an answer carries it, until the row of the next beat has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thinwire_coordinator.gossip.beats import Beats
from thinwire_coordinator.gossip.directory import Directory, Phase
from thinwire_coordinator.gossip.settings import GossipSettings
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.orders import tell_amended, tell_refused
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.amendments import amended

GO_ON = "once the run is complete, `thinwire-coordinator branch` begins another one with its final mean"


class Amending:
    def __init__(self, hall: Hall, settings: GossipSettings, beats: Beats) -> None:
        self._hall = hall
        self._settings = settings
        self._beats = beats

    def take(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Bring the orders that are due into force. Returns why others are refused, by their ids."""
        known, refused = {one.id for one in self._hall.contract.amendments}, {}
        for order in orders:
            if order.id not in known and (why := self._begin(order)):
                refused[order.id] = why
        return refused

    def _begin(self, order: Order) -> str:
        """Bring an order into force, unless it is not due. Returns why it is refused, or nothing."""
        hall, directory = self._hall, self._beats.directory
        try:
            step = first_step(hall.contract, directory)
            if (order.at or 0) > step:
                return ""
            amendment = Amendment(step, order.changes, order.because, order.id, hall.leases.cursor)
            contract = amended(hall.contract, amendment)
            hall.state.data.amend(contract)
        except ContractError as error:
            tell_refused(Amendment(0, order.changes, order.because), str(error))
            return str(error)
        hall.state.contract = contract
        self._settings.steps = contract.schedule.steps
        self._beats.amend()
        tell_amended(amendment, "iteration")
        return ""


def first_step(contract: Contract, directory: Directory) -> int:
    """The first iteration that an amendment can hold from. Raises ContractError if it is too late for one."""
    if directory.phase is not Phase.TRAINING:
        raise ContractError(f"the nodes have done all iterations, so nothing can change any more; {GO_ON}")
    step, steps = directory.reach, contract.schedule.steps
    if step >= steps:
        raise ContractError(
            f"nodes have leases up to the last of the {steps} iterations, so an amendment would come too late; {GO_ON}"
        )
    return max(step, contract.amendments[-1].step if contract.amendments else 0)
