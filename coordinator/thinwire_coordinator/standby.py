"""The life cycle of a standby's process: it follows the coordinator until it is promoted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from thinwire_common.reach.hosts import is_loopback, split_address
from thinwire_common.workers import Worker
from thinwire_coordinator.hall.access.addresses import address_for_invites
from thinwire_coordinator.hall.access.settings import PUBLIC_TLS
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_coordinator.hall.ledger.state_directory import RunState, is_state, lock_state, open_state
from thinwire_coordinator.hall.rpc.following import CannotFollow, FollowedAddress, follow_coordinator
from thinwire_coordinator.hall.rpc.server import check_listen
from thinwire_coordinator.hall.run_opening import check_settings
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.standby.follower import Follower
from thinwire_coordinator.hall.standby.standing import Superseded, keep_standing, read_standing
from thinwire_proto.errors import ConfigError, Damaged, LedgerError, PayloadError, RemoteError
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
            settings.tls.check(settings.listen, settings.http, writes_invite=settings.invite_file is not None)
            await check_listen(settings.listen)
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
            await self._check(state, public_tls=public_tls)
            insecure = settings.tls.insecure
            followed = FollowedAddress(
                settings.follow, state.key, state.contract.hash, insecure=insecure, public_tls=public_tls
            )
            follower = await self._worker.submit(Follower, state, self._address(), settings.keep)
            following = asyncio.ensure_future(self._follow(followed, follower))
            promoted = asyncio.ensure_future(self._promoted())
            stopped = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait((following, promoted, stopped), return_when=asyncio.FIRST_COMPLETED)
                for ended in (one for one in (following, promoted) if one.done()):
                    ended.result()
                return promoted.done() and not stopped.done()
            finally:
                for task in (following, promoted, stopped):
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following
        finally:
            await self._worker.submit(state.close)

    async def _check(self, state: RunState, *, public_tls: bool) -> None:
        """Find now what would keep this machine from taking over. Raises ConfigError."""
        settings = self._settings
        check_settings(state, settings)
        addresses = [settings.listen, settings.address, settings.http]
        transport = await asyncio.to_thread(Transport, settings.tls, settings.state_dir, state.key, addresses)
        if public_tls and not transport.public_tls:
            log.warning(
                "the nodes of this run expect a certificate that their system trusts; without --tls-certificate or "
                "--tls-proxy here, they cannot join this machine once it is promoted"
            )

        here, there = self._address(), settings.follow or ""
        if here and is_loopback(split_address(here)[0]) and not is_loopback(split_address(there)[0]):
            log.warning("nodes are told that the standby is at %s; --address says where they can reach it", here)

    def _address(self) -> str:
        """Where nodes will find this machine; empty if nobody has said so."""
        settings = self._settings
        _, port = split_address(settings.listen)
        return settings.address or (address_for_invites(settings.listen, port) if port else "")

    async def _promoted(self) -> None:
        """Wait until `promote` has made this machine the coordinator."""
        while True:
            with contextlib.suppress(OSError):  # it is read again
                if read_standing(self._settings.state_dir).promoted:
                    return
            await asyncio.sleep(ORDERS_READ_S)

    async def _follow(self, followed: FollowedAddress, follower: Follower) -> None:
        """Follow, and begin again after each break, also while the disk is full. Raises CannotFollow or Damaged."""
        pause_s, now = BACKOFF_FIRST_S, asyncio.get_running_loop().time

        def begun() -> None:
            self._tell(f"follows the coordinator at {followed.address} from step {follower.step}")

        async def apply(item: bytes) -> None:
            await self._worker.submit(follower.apply, item)

        while True:
            began = now()
            try:
                position = await self._worker.submit(follower.position)
                await follow_coordinator(followed, position, apply, begun)
                why = f"no coordinator to follow at {followed.address}: the stream ended"
            except (CannotFollow, Damaged):
                raise
            except (RemoteError, PayloadError) as error:
                why = f"no coordinator to follow at {followed.address}: {error}"
            except (LedgerError, OSError) as error:
                why = f"this machine cannot write what it is sent, and tries again: {error}"
            self._tell(f"{why}; step {follower.step} is here", logging.WARNING)
            if now() - began > BACKOFF_MAX_S:  # otherwise what is wrong would be said again and again
                pause_s = BACKOFF_FIRST_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    def _tell(self, text: str, level: int = logging.INFO) -> None:
        if text != self._told:
            self._told = text
            log.log(level, "%s", text)
