"""A gossip run: nodes mix their parameters with peers; the coordinator grants leases and seals their reports.

`Beats` takes reports and answers them, `Deposits` takes the parameters at the end, `RowSealer` writes the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_coordinator.gossip.beats import Beats
from thinwire_coordinator.gossip.deposits import Deposits
from thinwire_coordinator.gossip.directory import Directory, Phase
from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.gossip.held_out import HeldOutLosses
from thinwire_coordinator.gossip.ledger_rows import RowSealer
from thinwire_coordinator.gossip.measurements import Sketches
from thinwire_coordinator.gossip.sealed_beats import PastBeats
from thinwire_coordinator.gossip.settings import GossipSettings, gossip_settings
from thinwire_coordinator.gossip.view import GossipView
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.measurement import Part, SetMeasured
from thinwire_coordinator.hall.measuring import PartWeights
from thinwire_coordinator.hall.members import Member, Moment
from thinwire_coordinator.hall.run import JoinDecision, OfferedMomentum, Run, Upkeep, tell_amended, tell_refused
from thinwire_coordinator.hall.series import ReadRow
from thinwire_proto import limits
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.amendments import amended


class Gossip(Run):
    """beats: takes reports. deposits: takes parameters. held_out: takes losses that nodes measured.

    wait_for: nodes to wait for before the first topology. evaluate_every: see `HeldOutLosses`. The
    hall's replica is the first state, or the final mean. Its `upkeep` does nothing unless `keep_up` is set."""

    view: GossipView

    def __init__(self, hall: Hall, wait_for: int = 1, *, evaluate_every: int = 0) -> None:
        settings = gossip_settings(hall.contract, wait_for)
        super().__init__(hall)
        self._beat_s = settings.beat_s
        self._sealer = sealer = RowSealer(hall)
        self.held_out = HeldOutLosses(
            hall.state.held_out_sets,
            evaluate_every,
            settings.samples,
            lambda: settings.steps,
            PartWeights(hall.state),
        )
        self.beats = Beats(hall, settings, sealer, Sketches(lambda: settings.steps), self.held_out)
        self._amending = Amending(hall, settings, self.beats)
        self.deposits = Deposits(hall, settings, self.beats, sealer)
        self.view = GossipView(hall, self.beats.figures)

    @property
    def rows(self) -> int:
        return self._sealer.step

    def moment(self) -> Moment:
        now = self.hall.now()
        return Moment(int(now / self.hall.contract.round.length_s), self.hall.counts.beats, now)

    async def join(self, member: Member, momentum: OfferedMomentum | None, replica_step: int | None) -> JoinDecision:
        """A node keeps its lease: up to where it has trained is in its next report."""
        if self._sealer.begun:
            await self.beats.keep()  # the reply has them
        return JoinDecision(0, replica_step is None, "")

    def leave(self, member: Member, trained_through: int | None) -> None:
        self.beats.leave(member, trained_through)

    def amend(self, orders: Sequence[Order]) -> Mapping[str, str]:
        return self._amending.take(orders)

    def loses_place(self, member: Member) -> None:
        self.beats.leave(member, None)

    def measured(self, node: str, part: Part, loss: float) -> str:
        return self.held_out.answered(node, part, loss)

    def past_reader(self) -> ReadRow:
        return PastBeats(self.state.watch_ledger, self.state.bodies).read

    def start(self) -> None:
        """Seal rows from now on, until `stop`; a row that is being sealed then is sealed. A failure ends the
        coordinator."""
        self.tasks.keep_timed(self._seal_rows())
        self.tasks.keep_timed(self._seal_mean())

    async def _seal_rows(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            await asyncio.shield(self.tasks.seal(self.beats.seal()))

    async def _seal_mean(self) -> None:
        while True:
            await asyncio.sleep(min(self._beat_s, limits.LOOK_AGAIN_S))
            await asyncio.shield(self.tasks.seal(self.deposits.seal_if_due()))


GO_ON = "once the run is complete, `thinwire-coordinator branch` begins another one with its final mean"


class Amending:
    """Brings what the organizer has ordered into force, from an iteration on that no node has come to.

    The problem: nodes are at different iterations, and go on while the coordinator or their line to it is away. An
    amendment that held at once would have nodes take the same iteration under two contracts, and another end would
    leave some behind.

    The sketch: a node does no iteration without a lease, and hears of its lease in the answer to a report. The
    coordinator remembers up to which iteration any answer has let a node go (`Directory.reach`), and the amendment
    holds from there on. From then on it gives no more lease to a node whose report does not say that it has the
    amendment. The node keeps to its side in `GossipTraining`: with the iteration of a peer it takes no lease along.

    It is on disk beside the directory before an answer carries it, until the row of the next beat has it.
    """

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


@dataclass(eq=False)
class GossipUpkeep(Upkeep):
    """by_nodes: what nodes measured on the way."""

    figures: GossipFigures
    by_nodes: asyncio.Queue[SetMeasured]

    async def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self._follow(), self._collect()

    async def _follow(self) -> None:
        """Measure the loss of the first state, and of the mean once it is sealed."""
        measured = await self.measuring.newest_step()
        while True:
            is_complete = self.figures.stage == "complete"
            step = self.hall.contract.schedule.steps if is_complete else 0
            if measured is None or (is_complete and step > measured):
                copy = await self.hall.copies.take()
                measured = self.hall.contract.schedule.steps if copy.step else 0
                await self.measuring.measure_all(copy, measured)
                del copy  # with its file
            await self.hall.sealed.wait()
            self.hall.sealed.clear()

    async def _collect(self) -> None:
        while True:
            found = await self.by_nodes.get()
            await self.measuring.record(found.step, found.name, found.loss, found.measured_by, "single nodes: ")
            self.hall.measured_step = max(self.hall.measured_step, found.step)
