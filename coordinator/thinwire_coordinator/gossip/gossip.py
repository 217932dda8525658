"""A gossip run: nodes mix their parameters with peers; the coordinator grants leases and seals their reports.

`Beats` takes reports and answers them, `Deposits` takes the parameters at the end, `RowSealer` writes the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from thinwire_coordinator.gossip.amending import Amending
from thinwire_coordinator.gossip.beats import Beats
from thinwire_coordinator.gossip.deposits import Deposits
from thinwire_coordinator.gossip.held_out import HeldOutLosses
from thinwire_coordinator.gossip.rows import RowSealer
from thinwire_coordinator.gossip.sealed_beat import PastBeats
from thinwire_coordinator.gossip.settings import gossip_settings
from thinwire_coordinator.gossip.sketches import Sketches
from thinwire_coordinator.gossip.view import GossipView
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.measurement import Part
from thinwire_coordinator.hall.measuring import PartWeights
from thinwire_coordinator.hall.members import Member, Moment
from thinwire_coordinator.hall.run import JoinDecision, OfferedMomentum, Run
from thinwire_coordinator.hall.series import ReadRow
from thinwire_proto import limits


class Gossip(Run):
    """beats: takes reports. deposits: takes parameters. held_out: takes losses that nodes measured.

    wait_for: nodes to wait for before the first topology. evaluate_every, evaluate_samples: see `HeldOutLosses`. The
    hall's replica is the first state, or the final mean. Its `upkeep` does nothing unless `keep_up` is set."""

    view: GossipView

    def __init__(self, hall: Hall, wait_for: int = 1, *, evaluate_every: int = 0, evaluate_samples: int = 0) -> None:
        settings = gossip_settings(hall.contract, wait_for)
        super().__init__(hall)
        self._beat_s = settings.beat_s
        self._sealer = sealer = RowSealer(hall)
        self.held_out = HeldOutLosses(
            hall.state.held_out_sets,
            evaluate_samples,
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
