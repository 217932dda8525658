"""The star exchange: every node is linked to one coordinator over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import Admission, Amended, Announcement, Applicant, Claim, Outcome, SealedUpdate
from thinwire_proto.contract import Contract
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.limits import KEEPING_UP_S

UPDATES_LEAST = 3
BAD_WINDOWS = 2
"""Windows in a row in which the swarm sealed faster than the node applied. After so many the node cannot catch up."""


class KeepingUp:
    """Detects a node that fetches and applies updates more slowly than the swarm seals them. It should say so and stop.

    Measures windows of at least KEEPING_UP_S and UPDATES_LEAST updates. One window is no proof: a line that is silent
    for some seconds makes any window bad. So several in a row must be. Pure: the caller passes times in."""

    def __init__(self, step: int, head_step: int, now: float) -> None:
        self._bad = 0  # windows in a row, up to this one
        self._begin(step, head_step, now)

    def _begin(self, step: int, head_step: int, now: float) -> None:
        self._step, self._head_step, self._now = step, head_step, now
        self._fetch_s = self._replay_s = self._saved_s = 0.0
        self._bytes = 0

    def applied(
        self, size: int, fetch_s: float, replay_s: float, saved_s: float, step: int, head_step: int, now: float
    ) -> str | None:
        """Record an update that brought the replica to `step`, sent when `head_step` steps were sealed. Returns an
        error message if the node cannot catch up, else None.

        saved_s: time that the node spent saving its state after this update. It counts neither as replay nor for the
        length of the window, because saves are rare."""
        self._fetch_s += fetch_s
        self._replay_s += replay_s
        self._saved_s += saved_s
        self._bytes += size
        updates, sealed = step - self._step, head_step - self._head_step
        window_s = now - self._now
        worked_s = window_s - self._saved_s
        if worked_s < KEEPING_UP_S or updates < UPDATES_LEAST:
            return None
        round_s = window_s / sealed if sealed > 0 else float("inf")
        fetch_s, replay_s = self._fetch_s / updates, self._replay_s / updates
        mean_bytes, kb_s = self._bytes / updates, self._bytes / max(self._fetch_s, 1e-9) / 1000
        words = (
            f"this machine cannot catch up: an update takes {fetch_s:.2f} s to fetch ({mean_bytes:,.0f} bytes, "
            f"{kb_s:,.1f} kB/s) and {replay_s:.2f} s to replay, and the swarm seals one every {round_s:.2f} s; "
            f"the node is {head_step - step} updates behind. "
            f"It needs a faster {'link' if fetch_s > replay_s else 'machine'}"
        )
        self._begin(step, head_step, now)
        self._bad = self._bad + 1 if sealed * worked_s > updates * window_s else 0
        return words if self._bad >= BAD_WINDOWS else None


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
