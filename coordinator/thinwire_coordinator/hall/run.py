"""The port of a run: what the server, the page and the life cycle need, whatever the kind of exchange.

Also what any run does beside its rounds: the commands that the organizer has written down, and its snapshots.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.access.settings import Order, Pause
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.measurement import Part
from thinwire_coordinator.hall.measuring import Measuring
from thinwire_coordinator.hall.members import Member, Moment, Places
from thinwire_coordinator.hall.series import ReadRow
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.standby.standing import Superseded, note_newer
from thinwire_coordinator.hall.view import RunView
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import Damaged
from thinwire_proto.limits import ORDERS_READ_S

log = logging.getLogger("thinwire.coordinator")


@dataclass(frozen=True)
class OfferedMomentum:
    """A momentum that a joining node kept.

    trained_through: the last sample position in the momentum. sent_since: hashes of the contributions extracted after
    the momentum was saved.
    """

    trained_through: int | None
    sent_since: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JoinDecision:
    """The steps that a node must take before it takes part.

    step: the number of sealed steps. drop_momentum: the reason why the node must drop its momentum; empty if it may
    keep it. rewound: its newest rows were lost before the promotion of this coordinator.
    """

    step: int
    take_snapshot: bool
    drop_momentum: str
    rewound: bool = False


@dataclass(eq=False)
class Upkeep(ABC):
    """Measures held-out losses, writes snapshots and deletes old files."""

    hall: Hall
    measuring: Measuring

    @abstractmethod
    async def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What goes on side by side until cancelled."""


class Run(ABC):
    """A run in progress. Everything here runs on the event loop and returns at once; workers do the slow jobs.

    view: read-only access to its state, for those who watch.
    """

    view: RunView
    keeper: Keeper | None = None
    """The coordinator's knowledge of its standby; None: this kind of exchange has none."""
    keep_up: Upkeep | None = None

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.state = hall.state
        self.members = hall.members
        self.events = hall.events
        self.workers = hall.workers
        self.tasks = hall.tasks
        self.places = Places(hall.members, self.moment)
        hall.events.watchers.append(self.places.watch)
        self._fingerprinted = (-1, 0)
        self.superseded = False

    # what a kind of exchange defines

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of sealed rows."""

    @abstractmethod
    def moment(self) -> Moment:
        """Where the run stands, to compare how long nodes have been idle."""

    @abstractmethod
    async def join(self, member: Member, momentum: OfferedMomentum | None, replica_step: int | None) -> JoinDecision:
        """Decide whether a joining node may keep its momentum, and adjust its lease accordingly.

        replica_step: the step of the node's replica; None if it has none.
        """

    @abstractmethod
    def leave(self, member: Member, trained_through: int | None) -> None:
        """Handle an orderly departure: the node keeps its momentum, and the rest of its lease becomes free."""

    @abstractmethod
    def measured(self, node: str, part: Part, loss: float) -> str:
        """A node reports a held-out loss. Returns why it is refused, in words, or nothing."""

    @abstractmethod
    def past_reader(self) -> ReadRow:
        """Reads the rows of earlier terms for the page, in their order."""

    def start(self) -> None:
        """Nodes may call from now on."""

    def hold(self) -> None:
        """The pause in the hall has changed: begin nothing while there is one, and go on without one."""

    def amend(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Take the amendments that wait. Returns why orders were refused, by their ids."""
        return {}

    def known(self, member: Member, group: str) -> None:
        """A node has joined. group: of its address; see `access.addresses.group_of`."""

    def pardon(self, node: str) -> None:
        """The organizer overrules: everything against a node is forgotten."""

    def stands(self, node: str) -> tuple[float, str] | None:
        """How far a node is trusted, 0 to 1, and why not more, in words; None if this kind of exchange has no trust."""
        return None

    def ended(self, member: Member) -> None:
        """The session of a member was ended: its open streams must end."""

    def loses_place(self, member: Member) -> None:
        """A member has lost its place to another node."""

    # what they share

    async def upkeep(self) -> None:
        """Do the upkeep until cancelled."""
        works = await self.keep_up.works() if self.keep_up is not None else ()
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def stop_upkeep(self) -> None:
        """Abort the current measurement and any later one."""
        if self.keep_up is not None:
            self.keep_up.measuring.stop()

    def pause(self, pause: Pause | None) -> None:
        """Take the pause that the organizer has decided; None: there is none."""
        before, self.hall.pause = self.hall.pause, pause
        if before == pause:
            return
        text = pause.text if pause is not None else "the run goes on"
        until = pause.until if pause is not None else None
        tell(log, logging.INFO, "coordinator.pause", text, paused=pause is not None, until=until)
        self.hold()

    def give_way(self, term: int) -> None:
        """End, because another machine was promoted: its term is proven. Nothing is sealed from now on."""
        if self.superseded:
            return
        self.superseded = True
        if self.keeper is not None:
            self.keeper.superseded = True
            self.keeper.look()
        try:
            ends = note_newer(self.state.folder, term)
        except (OSError, Damaged) as error:
            log.error("the promotion cannot be noted, so do not start this coordinator again: %s", error)
            ends = Superseded(term)
        self.tasks.fail(ends)

    def make_place(self, node_id: str, group: str, *, has_counted: bool) -> bool:
        """Free a place of the full swarm for a node that wants to join. Returns False if it has to wait."""
        given = self.places.given_to(node_id, group, has_counted=has_counted)
        if given is None:
            return False
        member = self.members.by_id[given.node]
        text = f"this node's place was given to another one: {given.reason}; it may join again when a place is free"
        self.expel(given.node, Denied(DoorReason.FULL, text))
        self.loses_place(member)
        self.members.forget(member)
        return True

    def expel(self, node_id: str, denied: Denied) -> None:
        """End the session of a node, if it has one. Its open streams end, and its next call must be Join."""
        member = self.members.expel(node_id, denied)
        if member is None:
            return
        name, reason = member.name, denied.text
        text = f"{name}: its session was ended: {reason}"
        tell(log, logging.WARNING, "coordinator.session_ended", text, node_id=node_id, name=name, reason=reason)
        self.ended(member)

    async def fingerprint(self) -> tuple[int, int]:
        """(step, fingerprint with nonce 0) of the coordinator's replica."""
        return await self.workers.submit(Job.FINGERPRINT, self._fingerprint)

    def _fingerprint(self) -> tuple[int, int]:
        replica, (step, number) = self.hall.replica, self._fingerprinted
        if step != replica.step:
            self._fingerprinted = step, number = replica.step, replica.model_fingerprint()
        return step, number

    def stop(self) -> None:
        """Stop the timers, so that no row is begun any more. Then call `Tasks.settle`, unless the process dies."""
        self.tasks.stop()


def tell_amended(amendment: Amendment, unit: str = "step") -> None:
    """Log an amendment that has come into force. unit: see `Kind.unit`."""
    step, words = amendment.step, amendment.in_words
    tell(log, logging.INFO, "coordinator.amended", f"amended from {unit} {step} on: {words}", step=step, reason=words)


def tell_refused(amendment: Amendment, why: str) -> None:
    log.error("the amendment %s is refused: %s", amendment.in_words, why)


async def watch_orders(
    run: Run, access: AccessStore, newest: int = 0, wall_clock: Callable[[], float] = time.time
) -> None:
    """Read the decisions every ORDERS_READ_S, until cancelled. The door refuses banned nodes that join meanwhile.

    If the organizer pardons a node, everything against it is forgotten. newest: the number of the newest decision.
    """
    read = run.workers.once_unlocked
    while True:
        now = wall_clock()
        holding = await read(Job.READ_ORDERS, access.bans.holding, now)
        for node_id, ban in holding.items():
            run.expel(node_id, ban.denied(now))
        newest, pardoned = await read(Job.READ_ORDERS, access.bans.pardoned_since, newest)
        for node_id in pardoned:
            run.pardon(node_id)
        run.pause(await read(Job.READ_ORDERS, access.pauses.at, now))
        refused = run.amend(await read(Job.READ_ORDERS, access.amendments.waiting))
        await read(Job.READ_ORDERS, access.amendments.refuse, refused)
        await asyncio.sleep(ORDERS_READ_S)
