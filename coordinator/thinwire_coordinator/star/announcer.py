"""Grants samples to the attending nodes and sends them announcements, once the leases are on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.state_directory import unsealed
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.evaluations import Evaluations
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.open_round import KnownFingerprints, OpenRound
from thinwire_coordinator.star.round.announcements import IdleAnnouncement, RoundAnnouncement
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.view import StarView

IDLE_EVERY_S = 1.0


@dataclass(eq=False)
class Announcer:
    hall: Hall
    driver: RoundDriver
    fingerprints: KnownFingerprints
    view: StarView
    intake: Intake
    evaluations: Evaluations
    keeper: Keeper

    def __post_init__(self) -> None:
        self._granted: dict[str, None] = {}  # nodes to announce to once their leases are on disk; an ordered set
        self._writing = False
        self._telling: asyncio.TimerHandle | None = None

    def grant_and_announce(self, nodes: Iterable[str]) -> None:
        """Grant samples to nodes, and announce the round to them once the leases are on disk.

        The order matters: after a crash, the coordinator must not grant the same samples to other nodes.
        """
        leases, step, spec = self.hall.leases, self.driver.machine.step, self.view.contract.round
        for node in leases.away_since_before(step - spec.momentum_age_max):
            if (member := self.hall.members.by_id.get(node)) is None or not member.active:
                leases.take_back(node)  # its momentum is too old by now, and the node must drop it when it returns
        for node in nodes:
            leases.grant(node, spec.lease_samples, step)
            self._granted[node] = None
        if not self._writing:
            self._writing = True
            self.hall.tasks.keep_timed(self._write_leases())

    def announce_to_all(self) -> None:
        self._announce(self.hall.members.by_id)

    def announce_again(self, nodes: Iterable[str]) -> None:
        """Announce the open round again, because what nodes shall measure has changed."""
        if self.intake.current is None or self.driver.machine.sealing:
            return  # the next announcement has it
        if self._writing:
            self._granted |= dict.fromkeys(nodes)  # their leases may not be on disk yet
        else:
            self._announce(nodes)

    def tell_idle_soon(self) -> None:
        """While no round is open, tell all nodes what the swarm waits for now: who came first waits for fewer. Once in
        IDLE_EVERY_S, because a thousand nodes may come together."""
        if self.intake.current is None and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(IDLE_EVERY_S, self._tell_idle)

    def _tell_idle(self) -> None:
        self._telling = None
        if self.intake.current is None:
            self.announce_to_all()

    def idle(self) -> IdleAnnouncement:
        """The announcement for a node that takes no part in an open round."""
        text = self.view.condition if self.intake.current is None else "waiting for samples of the open round"
        pause, machine = self.hall.pause, self.driver.machine
        left_s = None if pause is None else pause.left_s(self.hall.surroundings.wall())
        return IdleAnnouncement(
            self.view.term.number,
            machine.step,
            text,
            complete=machine.complete and self.driver.going_back is None,
            paused=self.view.stage == "paused",
            resumes_in_s=left_s,
        )

    async def _write_leases(self) -> None:
        """Write the leases and then announce them; one write at a time covers all grants made meanwhile.

        A thousand nodes may return at once, so one write for each would be too slow. What is not on disk is not
        announced. If another program holds the ledger's lock, the leases are written as they are once it is free.
        """
        while self._granted:
            announced = list(self._granted)
            self._granted.clear()
            await self.hall.workers.newest_once_unlocked(Job.WRITE_LEASES, self._recording)
            self.keeper.granted()
            await self.keeper.has_leases()
            # who has been granted more meanwhile gets it all with the next write
            self._announce([node for node in announced if node not in self._granted])
        self._writing = False

    def _recording(self) -> Callable[[], None]:
        ledger, leases = self.hall.state.ledger, self.hall.leases.packed()
        if begun := unsealed(self.hall.contract, self.driver.machine.step):
            return partial(ledger.record_directory, leases, begun)
        return partial(ledger.record_leases, leases)

    def _announce(self, nodes: Iterable[str]) -> None:
        current = self.intake.current
        for node in nodes:
            member = self.hall.members.by_id.get(node)
            if member is not None and member.announcements is not None:
                takes_part = current is not None and self.hall.leases.holds(node)
                member.announcements.put(self._announcement(current, node) if current and takes_part else self.idle())

    def _announcement(self, current: OpenRound, node: str) -> RoundAnnouncement:
        return RoundAnnouncement(
            term=self.view.term.number,
            number=current.round.number,
            step=current.round.step,
            deadline=current.round.deadline,
            now=self.driver.now(),
            k=self.hall.contract.demo.k,
            nonces=tuple(self.fingerprints.nonces(current.round.step)),
            lease=self.hall.leases.granted(node),
            upcoming=self.hall.leases.reserved(node),
            evaluate=tuple(self.evaluations.open_to(node)),
            evaluating=self.evaluations.step_for(node),
        )
