"""The life cycle of a coordinator process: startup, main loop, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from filelock import FileLock

from thinwire_common.logs import tell
from thinwire_common.open_files import check_open_files
from thinwire_common.os_errors import in_words, limit_in_words
from thinwire_common.ready_file import prepare_ready, remove_ready, write_ready
from thinwire_coordinator.hall.access.admission import LEAST, Bounds, open_files_for
from thinwire_coordinator.hall.access.organizer import open_organizer_secret
from thinwire_coordinator.hall.access.settings import PUBLIC_TLS
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_coordinator.hall.capacity import after_orders, check_memory, frozen_bytes
from thinwire_coordinator.hall.events import Event
from thinwire_coordinator.hall.hall import open_hall
from thinwire_coordinator.hall.invite_address import publish_address, tell_proxy
from thinwire_coordinator.hall.kind import Kind, Opening
from thinwire_coordinator.hall.ledger.bodies import StoreFails
from thinwire_coordinator.hall.ledger.identity import open_identity
from thinwire_coordinator.hall.ledger.state_directory import RunState, StartInterrupted, lock_state
from thinwire_coordinator.hall.measuring import HeldOut
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.rpc.following import FollowedAddress, show_term
from thinwire_coordinator.hall.rpc.server import Server, check_listen
from thinwire_coordinator.hall.run import Run, watch_orders
from thinwire_coordinator.hall.run_opening import StartWorker, open_run, replay_run
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.standby.standing import Standing, check_leads
from thinwire_coordinator.hall.workers import Workers, default_threads
from thinwire_coordinator.kinds import kind_of
from thinwire_coordinator.monitoring import Monitoring
from thinwire_proto import limits
from thinwire_proto.errors import (
    MEND_STORE,
    Damaged,
    LedgerError,
    LocalError,
    Locked,
    ThinwireError,
)
from thinwire_proto.exact.tiles import layout_of

log = logging.getLogger("thinwire.coordinator")


class Coordinator:
    """One coordinator process.

    watchers: receive each event of the swarm. on_listening: receives the port when nodes can join.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        watchers: Sequence[Callable[[Event], None]] = (),
        on_listening: Callable[[int], None] | None = None,
    ) -> None:
        self._settings = settings
        self._watchers = watchers
        self._on_listening = on_listening
        self._workers = Workers()
        self._start_worker = StartWorker(self._workers)
        self._monitoring = Monitoring(settings, self._workers)
        self._lock: FileLock | None = None
        self._access: AccessStore | None = None
        self._transport: Transport | None = None
        self._trying: asyncio.Task[None] | None = None
        self._state: RunState | None = None
        self._run: Run | None = None
        self._server: Server | None = None
        self._standing = Standing()
        self._decided = 0

    @property
    def readiness(self) -> Readiness:
        return self._monitoring.readiness

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises LocalError if the coordinator cannot start, go on, or stop cleanly."""
        try:
            await self._serve(stop)
        except Locked as error:
            raise Locked(f"{error}; nothing that was sealed is lost; then start it again") from error
        except LedgerError as error:
            if error.step is not None or isinstance(error, Damaged):
                raise
            raise LedgerError(f"{error}; nothing that was sealed is lost; {error.mend}") from error
        except ThinwireError:
            raise
        except StoreFails as error:
            raise LocalError(f"the updates: {error}; nothing that was sealed is lost; {MEND_STORE}") from error
        except OSError as error:
            folder = self._settings.state_dir
            raise LocalError(f"{folder}: {in_words(error, 'nothing that was sealed is lost')}") from error
        except Exception as error:
            if words := limit_in_words(error):
                raise LocalError(f"{words}; nothing that was sealed is lost") from error
            log.exception("this is a bug, or the machine fails")
            raise LocalError(f"the coordinator cannot go on: {error!r}; nothing that was sealed is lost") from error

    async def _serve(self, stop: asyncio.Event) -> None:
        """Start, serve, and shut down. Raises the first failure; of the shutdown, only an OSError or ThinwireError."""
        try:
            if await self._startup_unless(stop):
                await self._main_loop(stop)
        finally:
            await self._shutdown()
        if self._run is not None and self._run.view.stage != "complete":
            step, steps = self._run.view.step, self._run.view.contract.schedule.steps
            log.info("stopped at step %d of %d; the same command goes on from there", step, steps)
        if self._run is not None and (error := self._run.tasks.failed_late) is not None:
            raise error  # a script that stops the coordinator must learn that something was not written

    async def _startup_unless(self, stop: asyncio.Event) -> bool:
        """Start up. Return False if told to stop meanwhile; the next start redoes an unfinished creation of a run."""
        loop = asyncio.get_running_loop()
        starting, stopped = loop.create_task(self._startup()), loop.create_task(stop.wait())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                self._start_worker.stop()
            await starting
        except StartInterrupted:
            log.info("told to stop while %s", self.readiness.text)
            return False
        finally:
            stopped.cancel()
            starting.cancel()
        return True

    async def _startup(self) -> None:
        settings, folder = self._settings, self._settings.state_dir
        check_open_files(LEAST)
        self._monitoring.check()
        settings.tls.check(settings.listen, settings.http, writes_invite=settings.invite_file is not None)
        self._lock = lock_state(folder)
        self._standing = check_leads(folder)
        await check_listen(settings.listen)
        prepare_ready(settings.ready)
        secret = open_organizer_secret(folder)
        key = open_identity(folder)  # now, so that invites can be made while a large run is created
        opening = partial(AccessStore, folder, needs_invite=not settings.tls.insecure)
        self._access = access = await self._start_worker.run(opening)
        self._decided = access.bans.newest_decision  # before the trust in nodes is read: a pardon after it counts
        addresses = [settings.listen, settings.address, settings.http]
        self._transport = transport = await asyncio.to_thread(Transport, settings.tls, folder, key, addresses)
        self._monitoring.start(transport, secret)
        self._state = state = await open_run(settings, access.amendments, self._start_worker, self.readiness)
        parameters = layout_of(state.contract.parameters).parameters
        self._workers.set_threads(settings.threads or default_threads(parameters, torch.get_num_threads()))
        # before the replica, because a model has memory for its parameters until it has given it up
        held_out = await self._start_worker.run(HeldOut, state.contract, state.data, state.blobs)
        kind = kind_of(state.contract)
        replayed = await replay_run(kind, state, settings, self._start_worker, self.readiness)
        hall = open_hall(state, replayed.replica, self._workers, least_term=self._standing.promoted)
        hall.events.watchers += self._watchers
        self._run = run = kind.open(Opening(hall, settings, access, replayed.retention, held_out))
        run.pause(access.pauses.at(hall.surroundings.wall()))
        access.amendments.refuse(run.amend(access.amendments.waiting()))
        await self._monitoring.begin(run, access, replayed, self._start_worker)
        await self._listen(kind, run, access, transport)

    async def _listen(self, kind: Kind, run: Run, access: AccessStore, transport: Transport) -> None:
        """Let nodes join, and log what they join."""
        settings, contract = self._settings, run.view.contract
        bounds = open_files_for(Bounds(contract.round.nodes_max, transport.behind_proxy))
        frozen = await self._start_worker.run(frozen_bytes, contract, run.hall.state.blobs)
        memory_of = partial(kind.memory, frozen=frozen, audits=settings.audit_every > 0)
        later = after_orders(contract, access.amendments.waiting())
        owns = [await self._start_worker.run(memory_of, one) for one in dict.fromkeys((contract, later))]
        own = max(owns, key=lambda one: one.total_bytes)
        check_memory(contract, bounds, frozen, own)
        door, whole_run = run.hall.door(access), self._monitoring.whole_run
        self._server = Server(run, kind.service, door, transport, bounds, whole_run)
        port = await self._server.start(settings.listen)
        run.start()
        if run.keeper is not None and (why := run.keeper.holds()):
            log.warning("no round begins: %s; without --seal-after-standby, it goes on alone", why)
        if transport.invites_needed:
            fingerprint = run.state.key.public.fingerprint
            trying = publish_address(settings, access, port, fingerprint, public_tls=transport.public_tls)
            self._trying = asyncio.get_running_loop().create_task(trying)
        if transport.behind_proxy:
            tell_proxy(forwards=transport.trusted_proxy is not None)
        name, parameters = contract.hash.hex(), run.view.layout.parameters
        steps, pace = contract.schedule.steps, contract.round.pace
        text = f"contract {name[:16]}: {parameters:,} parameters, {steps} steps, pace {pace}"
        log.info("%s", text)
        self._monitoring.listening(run, port)
        if self._on_listening is not None:
            self._on_listening(port)
        host, _, _ = settings.listen.rpartition(":")
        address, page, term = f"{host}:{port}", self._monitoring.page_address, run.view.term.number
        write_ready(settings.ready, address=address, page=page, term=term)
        text = f"term {term}, listening on {address}"
        tell(log, logging.INFO, "coordinator.listening", text, address=address, page=page, term=term, contract=name)

    async def _main_loop(self, stop: asyncio.Event) -> None:
        """Run the upkeep until told to stop or until a failure."""
        assert self._run is not None
        assert self._access is not None
        loop = asyncio.get_running_loop()
        stopped = loop.create_task(stop.wait())
        upkeep = loop.create_task(self._run.upkeep())
        access = self._access
        orders = loop.create_task(watch_orders(self._run, access, self._decided))
        rotation = loop.create_task(self._rotate())
        telling = loop.create_task(self._tell_the_one_before())
        try:
            ends: tuple[asyncio.Future[Any], ...] = (stopped, upkeep, orders, rotation, self._run.tasks.failed)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._run.tasks.failed, upkeep, orders, rotation):
                if end.done() and (error := end.exception()) is not None:
                    raise error
        finally:
            self._run.tasks.log_failures()
            for task in (stopped, upkeep, orders, rotation, telling):
                task.cancel()

    async def _tell_the_one_before(self) -> None:
        """Show the proof of the promotion to the coordinator that this machine followed, in case that it lives."""
        if self._run is None or self._access is None or not (address := self._standing.follows):
            return
        key, proven = self._run.state.key, self._run.hall.proven
        public_tls = bool(self._access.settings.get(PUBLIC_TLS))
        insecure = self._settings.tls.insecure
        contract = self._run.hall.contract.hash
        await show_term(FollowedAddress(address, key, contract, insecure=insecure, public_tls=public_tls), proven)

    async def _rotate(self) -> None:
        """Renew the certificate until cancelled."""
        if self._transport is not None and self._transport.rotation is not None:
            await self._transport.rotation.run()
        await asyncio.Event().wait()

    async def _shutdown(self) -> None:
        self.readiness.ending = True
        if self._lock is not None:
            with contextlib.suppress(OSError):  # a reader of a stale file sees from its pid that the process is gone
                remove_ready(self._settings.ready)
        if self._run is not None:
            self._run.stop_upkeep()
        if self._trying is not None:
            self._trying.cancel()
        if self._server is not None:
            await self._server.stop(limits.SHUTDOWN_GRACE_S)
        if self._run is not None:
            self._run.stop()  # otherwise a round could open after the workers are closed
            await self._run.tasks.settle(limits.SEAL_CLOSE_S)  # otherwise curves and metrics would lack a step
            self._run.tasks.end()
        await self._monitoring.close()
        await asyncio.get_running_loop().run_in_executor(None, self._workers.close)
        if self._state is not None:
            self._state.close()
        if self._access is not None:
            self._access.close()
        if self._lock is not None:
            self._lock.release()
