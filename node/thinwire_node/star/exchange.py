"""The star exchange: every node is linked to one coordinator over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import Admission, Amended, Announcement, Applicant, Claim, Outcome, SealedUpdate
from thinwire_node.star.keeping_up import KeepingUp
from thinwire_proto.contract import Contract
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.replica import Replica


class Star(Link):
    """The star's implementation of `thinwire_node.exchange.port.Exchange`."""

    _head_step = 0
    _catching_up = True
    _contract: Contract | None = None

    async def join(self, applicant: Applicant) -> Admission:
        admission = await super().join(applicant)
        self._head_step = admission.step
        self._contract = admission.contract
        return admission

    async def rounds(self) -> AsyncGenerator[Announcement | Amended, None]:
        async with aclosing(self.announcements()) as announcements:
            is_first = True
            async for message in announcements:
                self._catching_up = False
                if address := messages.standby_address(message):
                    self._heard_of_standby(address)
                assert self._contract is not None
                contract = messages.amended(message, self._contract, is_first=is_first)
                is_first = False
                if contract is not self._contract:
                    self._contract = contract
                    yield Amended(contract)
                yield messages.announcement(message, contract)

    async def publish(self, claim: Claim, payload: bytes) -> Outcome:
        key, _ = self.joined_as()
        return messages.outcome(await self.contribute(messages.header(claim, key), payload))

    async def outcome(self, contribution: bytes) -> Outcome:
        return messages.outcome(await self.ask_receipt(contribution))

    async def updates(self, replica: Replica, saved_s: Callable[[], float]) -> AsyncGenerator[SealedUpdate, None]:
        """Yield updates, and check that a replica which is behind catches up. The caller asks for the next update when
        it has replayed the last one, so the time between, without that of a save, is the replay time."""
        now, contract = self._clocks.now, self._contract or replica.contract
        keeping_up = KeepingUp(replica.step, self._head_step, now())
        asked_at = now()
        async with aclosing(self.sealed_updates(replica, contract)) as updates:
            async for sealed in updates:
                came_at, saved_before_s = now(), saved_s()
                yield sealed
                step = sealed.row.step + 1
                if step < self._head_step:
                    fetch_s, save_s = came_at - asked_at, saved_s() - saved_before_s
                    replay_s, head_step = now() - came_at - save_s, sealed.head_step
                    cannot = keeping_up.applied(sealed.size, fetch_s, replay_s, save_s, step, head_step, now())
                    if cannot:
                        raise LocalError(cannot)
                    if self._catching_up:
                        self._head_step = sealed.head_step  # the swarm advances during the catch-up
                asked_at = now()
