"""The life cycle of a standby's process: it follows the coordinator until it is promoted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from thinwire_common.reach.hosts import split_address
from thinwire_common.workers import Worker
from thinwire_coordinator.hall.access.addresses import address_for_invites
from thinwire_coordinator.hall.access.store import PUBLIC_TLS, AccessStore
from thinwire_coordinator.hall.ledger.state_directory import is_state, lock_state, open_state
from thinwire_coordinator.hall.rpc.follow_client import CannotFollow, FollowedAddress, follow
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.standby.follower import Follower
from thinwire_coordinator.hall.standby.standing import Superseded, keep_standing, read_standing
from thinwire_proto.errors import ConfigError, PayloadError, RemoteError
from thinwire_proto.limits import BACKOFF_FIRST_S, BACKOFF_MAX_S, ORDERS_READ_S

log = logging.getLogger("thinwire.coordinator")


class Standby:
    """One process of a standby. settings.follow: HOST:PORT of the coordinator."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._worker = Worker("standby")
        self._told = ""

    async def run(self, stop: asyncio.Event) -> bool:
        """Follow until `stop` is set, or until this machine is promoted. Returns whether it was. Raises ThinwireError
        or OSError."""
        settings, folder = self._settings, self._settings.state_dir
        assert settings.follow is not None
        if not is_state(folder):
            raise ConfigError(
                f"{folder} has no run: run `thinwire-coordinator backup` on the coordinator's machine, and `restore` "
                "here, so that this machine has the key of the run"
            )
        lock = lock_state(folder)
        try:
            standing = read_standing(folder)
            if standing.newer:
                raise Superseded(standing.newer)
            if standing.promoted:
                log.info("%s", f"this machine was promoted, so it no longer follows {settings.follow}")
                return True
            keep_standing(folder, replace(standing, follows=settings.follow))
            return await self._follow_until(stop)
        finally:
            self._worker.close()
            lock.release()

    async def _follow_until(self, stop: asyncio.Event) -> bool:
        settings, folder = self._settings, self._settings.state_dir
        assert settings.follow is not None
        with contextlib.closing(AccessStore(folder, needs_invite=not settings.tls.insecure)) as access:
            public_tls = bool(access.settings.get(PUBLIC_TLS))
        state = await self._worker.submit(open_state, folder)
        try:
            insecure = settings.tls.insecure
            followed = FollowedAddress(settings.follow, state.key, insecure=insecure, public_tls=public_tls)
            follower = await self._worker.submit(Follower, state, self._address(), settings.keep)
            following = asyncio.ensure_future(self._follow(followed, follower))
            promoted = asyncio.ensure_future(self._promoted())
            stopped = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait((following, promoted, stopped), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                return promoted.done() and not stopped.done()
            finally:
                for task in (following, promoted, stopped):
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following
        finally:
            await self._worker.submit(state.close)

    def _address(self) -> str:
        """Where nodes will find this machine; empty if nobody has said so."""
        settings = self._settings
        _, port = split_address(settings.listen)
        return settings.address or (address_for_invites(settings.listen, port) if port else "")

    async def _promoted(self) -> None:
        """Wait until `promote` has made this machine the coordinator."""
        while True:
            if read_standing(self._settings.state_dir).promoted:
                return
            await asyncio.sleep(ORDERS_READ_S)

    async def _follow(self, followed: FollowedAddress, follower: Follower) -> None:
        """Follow, and begin again after each break. Raises CannotFollow, LedgerError or OSError."""
        pause_s = BACKOFF_FIRST_S

        def begun() -> None:
            nonlocal pause_s
            pause_s = BACKOFF_FIRST_S
            self._tell(f"follows the coordinator at {followed.address} from step {follower.step}")

        async def apply(item: bytes) -> None:
            await self._worker.submit(follower.apply, item)

        while True:
            try:
                position = await self._worker.submit(follower.position)
                await follow(followed, position, apply, begun)
                text = "the stream ended"
            except CannotFollow:
                raise
            except (RemoteError, PayloadError) as error:
                text = str(error)
            self._tell(f"no coordinator to follow at {followed.address}: {text}; step {follower.step} is here")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            log.info("%s", text)
