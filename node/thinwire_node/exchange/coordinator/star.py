"""The star exchange: every node is linked to one coordinator over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.coordinator.keeping_up import KeepingUp
from thinwire_node.exchange.coordinator.link import Link, connect
from thinwire_node.exchange.coordinator.probed_clock import ProbedClock
from thinwire_node.exchange.kinds import Surroundings
from thinwire_node.exchange.port import Admission, Announcement, Applicant, Claim, EvaluationPart, Outcome, SealedUpdate
from thinwire_node.runtime import Clocks
from thinwire_node.storage.state import PartialSnapshot
from thinwire_proto.blobs import Blob
from thinwire_proto.contract import Contract
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.limits import probe_every_s


class Star:
    """The star's implementation of `thinwire_node.exchange.port.Exchange`. connect: opens the link, before `join`."""

    def __init__(self, connect: Callable[[], Awaitable[Link]], clocks: Clocks, invite: Invite | None = None) -> None:
        self._connect = connect
        self._opened: Link | None = None
        self._invite = invite
        self._clocks = clocks
        self._clock: ProbedClock | None = None
        self._key: SecretKey | None = None
        self._head_step = 0
        self._catching_up = True

    @property
    def _link(self) -> Link:
        assert self._opened is not None
        return self._opened

    @property
    def clock(self) -> ProbedClock:
        assert self._clock is not None
        return self._clock

    async def join(self, applicant: Applicant) -> Admission:
        self._key = applicant.key
        momentum = messages.momentum_message(applicant.momentum)
        self._opened = await self._connect()
        reply = await self._link.join(
            applicant.key,
            self._invite,
            applicant.contract,
            applicant.name,
            applicant.head,
            applicant.replica_step,
            momentum,
        )
        admission = messages.admission(reply)
        self._head_step = admission.step
        self._clock = ProbedClock(self._link, self._clocks, probe_every_s(admission.contract.round.length_s))
        return admission

    async def corpus(self, contract: Contract) -> bytes:
        return await self._link.corpus(contract)

    async def blob(self, blob: Blob, path: Path) -> None:
        await self._link.blob(blob, path)

    async def snapshot(self, folder: Path, contract: Contract, begun: PartialSnapshot | None) -> Path:
        return await self._link.snapshot(folder, contract, begun)

    async def rounds(self) -> AsyncGenerator[Announcement, None]:
        async with aclosing(self._link.announcements()) as announcements:
            async for message in announcements:
                self._catching_up = False
                yield messages.announcement(message)

    async def publish(self, claim: Claim, payload: bytes) -> Outcome:
        assert self._key is not None
        return messages.outcome(await self._link.contribute(messages.header(claim, self._key), payload))

    async def outcome(self, contribution: bytes) -> Outcome:
        return messages.outcome(await self._link.ask_receipt(contribution))

    async def evaluated(self, part: EvaluationPart, loss: float) -> None:
        await self._link.evaluated(messages.evaluation_part(part), loss)

    async def updates(self, replica: Replica) -> AsyncGenerator[SealedUpdate, None]:
        """Yield updates, and check that a replica which is behind catches up. The caller asks for the next update when
        it has replayed the last one, so the time between is the replay time."""
        now = self._clocks.now
        keeping_up = KeepingUp(replica.step, self._head_step, now())
        asked_at = now()
        async with aclosing(self._link.updates(replica.step, replica)) as updates:
            async for sealed in updates:
                came_at = now()
                yield sealed
                step = sealed.row.step + 1
                if step < self._head_step:
                    fetch_s, replay_s = came_at - asked_at, now() - came_at
                    cannot = keeping_up.applied(sealed.size, fetch_s, replay_s, step, sealed.head_step, now())
                    if cannot:
                        raise LocalError(cannot)
                    if self._catching_up:
                        self._head_step = sealed.head_step  # the swarm advances during the catch-up
                asked_at = now()

    async def leave(self, trained_through: int | None) -> None:
        await self._link.leave(trained_through)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


def open_star(surroundings: Surroundings) -> Star:
    address, invite = surroundings.address, surroundings.invite
    return Star(lambda: connect(address, invite, surroundings.traffic), surroundings.clocks, invite)
