"""A run without a centre, as one object: its reports, its clock, and its end."""

from __future__ import annotations

import asyncio
import random

from thinwire_coordinator.gossip.beats import Beats
from thinwire_coordinator.gossip.deposits import Deposits
from thinwire_coordinator.gossip.held_out import HeldOutLosses
from thinwire_coordinator.gossip.rows import RowSealer
from thinwire_coordinator.gossip.settings import gossip_settings
from thinwire_coordinator.gossip.sketches import Sketches
from thinwire_coordinator.hall.swarm import Swarm
from thinwire_proto import limits
from thinwire_proto.exact.replica import Replica


class GossipRun:
    """beats: takes reports. deposits: takes parameters. held_out: takes losses that nodes measured."""

    def __init__(self, swarm: Swarm, beats: Beats, deposits: Deposits, held_out: HeldOutLosses, beat_s: float) -> None:
        self.beats = beats
        self.deposits = deposits
        self.held_out = held_out
        self._swarm = swarm
        self._beat_s = beat_s

    def start(self) -> None:
        """Seal rows from now on, until the swarm stops; a row that is being sealed then is sealed. A failure ends the
        coordinator."""
        self._swarm.tasks.keep_timed(self._seal_rows())
        self._swarm.tasks.keep_timed(self._seal_mean())

    async def _seal_rows(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            await asyncio.shield(self._swarm.tasks.seal(self.beats.seal()))

    async def _seal_mean(self) -> None:
        while True:
            await asyncio.sleep(min(self._beat_s, limits.LOOK_AGAIN_S))
            await asyncio.shield(self._swarm.tasks.seal(self.deposits.seal_if_due()))


def make_gossip_run(
    swarm: Swarm,
    replica: Replica,
    wait_for: int,
    randomness: random.Random | None = None,
    *,
    evaluate_every: int = 0,
    evaluate_samples: int = 0,
) -> GossipRun | None:
    """The parts of a run without a centre; None for any other. replica: θ₀ or the final mean. evaluate_every: see
    `HeldOutLosses`."""
    settings = gossip_settings(swarm.view.contract, wait_for)
    if settings is None:
        return None
    randomness = randomness or random.SystemRandom()
    sealer = RowSealer(swarm, replica, randomness)
    sets = swarm.state.held_out_sets
    held_out = HeldOutLosses(sets, evaluate_samples, evaluate_every, settings.samples, settings.steps)
    beats = Beats(swarm, settings, sealer, Sketches(settings.steps), held_out)
    swarm.view.gossip = beats.figures
    swarm.loses_place = lambda member: beats.leave(member, None)
    return GossipRun(swarm, beats, Deposits(swarm, settings, beats, sealer), held_out, settings.beat_s)
