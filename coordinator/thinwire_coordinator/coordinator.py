"""The life cycle of a coordinator process: startup, main loop, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from filelock import FileLock

from thinwire_common.logs import tell
from thinwire_common.ready_file import READY_FILE, prepare_ready, remove_ready, write_ready
from thinwire_common.units import human_bytes
from thinwire_coordinator.access.addresses import address_for_invites
from thinwire_coordinator.access.bounds import Bounds
from thinwire_coordinator.access.invite_strings import keep_invite_file
from thinwire_coordinator.access.logins import Logins
from thinwire_coordinator.access.organizer_secret import FILE as SECRET_FILE
from thinwire_coordinator.access.organizer_secret import open_organizer_secret
from thinwire_coordinator.access.port import Everybody
from thinwire_coordinator.access.settings_table import ADDRESS, PUBLIC_TLS
from thinwire_coordinator.access.store import AccessStore
from thinwire_coordinator.access.transport import TlsSettings, Transport
from thinwire_coordinator.auditing import Auditor
from thinwire_coordinator.evaluation import SAMPLES, choose_nodes
from thinwire_coordinator.home_check import tell_reachability
from thinwire_coordinator.kept_trust import KeptTrust
from thinwire_coordinator.ledger.disk_forecast import Need, in_words, measure
from thinwire_coordinator.ledger.identity import open_identity
from thinwire_coordinator.ledger.retention import Retention
from thinwire_coordinator.ledger.signing import sign_older_rows
from thinwire_coordinator.ledger.state_directory import (
    RunState,
    StartInterrupted,
    check_bodies,
    check_run,
    create_state,
    is_state,
    lock_state,
    open_state,
    replica_at_head,
)
from thinwire_coordinator.observe.exposition import Exposition
from thinwire_coordinator.observe.readiness import Readiness
from thinwire_coordinator.observe.sinks.sinks import Sinks, SinkSettings
from thinwire_coordinator.rpc.memory_bound import MemoryBound, machine_bytes, memory_bound
from thinwire_coordinator.rpc.open_files import open_files_for
from thinwire_coordinator.rpc.server import Server
from thinwire_coordinator.rpc.update_messages import encode_update_parts
from thinwire_coordinator.swarm.assembly import assemble, door_of
from thinwire_coordinator.swarm.ban_watch import watch_bans
from thinwire_coordinator.swarm.events import Event
from thinwire_coordinator.swarm.observer import TrustSettings
from thinwire_coordinator.swarm.swarm import Swarm
from thinwire_coordinator.swarm.workers import Job, Workers
from thinwire_coordinator.trust.port import TrustStore
from thinwire_coordinator.upkeep import Upkeep
from thinwire_coordinator.web.organizer import Organizer
from thinwire_coordinator.web.page import Page
from thinwire_coordinator.web.panel import AccessPanel
from thinwire_coordinator.web.server import WebServer
from thinwire_proto import limits
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.errors import MEND_DISK, ConfigError, Damaged, LedgerError, LocalError, ThinwireError

log = logging.getLogger("thinwire.coordinator")

Result = TypeVar("Result")


EvaluatedBy = Literal["coordinator", "nodes", "auto"]


@dataclass(frozen=True)
class CoordinatorSettings:
    """Settings of one coordinator process; the contract defines the run itself."""

    state_dir: Path
    listen: str
    run: RunSpec | None
    wait_for: int
    evaluate_every: int
    evaluate_samples: int = SAMPLES
    evaluate: EvaluatedBy = "coordinator"
    audit_every: int = 0
    """Rounds from one audit of contributions to the next; 0: no audits."""
    bodies: str | None = None
    """Address of the bodies; None: the address of the existing run, or the state directory for a new run."""
    keep: int | None = None
    """How many snapshots to keep; see `retention`."""
    address: str | None = None
    """HOST:PORT in invites; None: derived from `listen`."""
    invite_file: Path | None = None
    """Keep an invite for any number of nodes in this file."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Certificates, or plain text."""
    http: str | None = None
    """Address of the page and the metrics; None: do not serve them."""
    http_may_move: bool = False
    """Whether the page may use another port if this one is taken."""
    ready_file: Path | None = None
    """File to write when nodes can join; None: in the state directory."""
    sinks: SinkSettings = field(default_factory=SinkSettings)
    """Other targets of the curves and the metrics."""

    @property
    def ready(self) -> Path:
        return self.ready_file or self.state_dir / READY_FILE


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
        self._told_to_stop = threading.Event()
        self._lock: FileLock | None = None
        self._access: AccessStore | None = None
        self._transport: Transport | None = None
        self._trying: asyncio.Task[None] | None = None
        self._state: RunState | None = None
        self._swarm: Swarm | None = None
        self._upkeep: Upkeep | None = None
        self._server: Server | None = None
        self.readiness = Readiness()
        self._exposition = Exposition(self.readiness, self._workers)
        self._sinks = Sinks(settings.sinks, settings.state_dir)
        self._exposition.metrics.registry.register(self._sinks)
        self._page = Page(self.readiness)
        self._web: WebServer | None = None
        self._organizer: Organizer | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises LocalError if the coordinator cannot start or cannot go on."""
        try:
            if await self._startup_unless(stop):
                await self._main_loop(stop)
        except LedgerError as error:
            if error.step is not None or isinstance(error, Damaged):
                raise
            # the ledger cannot be read or written: the disk is full or fails
            raise LedgerError(f"{error}; nothing that was sealed is lost; {MEND_DISK}") from error
        except ThinwireError:
            raise
        except OSError as error:
            folder = self._settings.state_dir
            raise LocalError(
                f"{folder}: the disk fails: {error}; nothing that was sealed is lost; {MEND_DISK}"
            ) from error
        except Exception as error:
            log.exception("this is a bug, or the machine fails")
            raise LocalError(f"the coordinator cannot go on: {error!r}; nothing that was sealed is lost") from error
        finally:
            await self._shutdown()

    async def _startup_unless(self, stop: asyncio.Event) -> bool:
        """Start up. Return False if told to stop meanwhile; the next start redoes an unfinished creation of a run."""
        loop = asyncio.get_running_loop()
        starting, stopped = loop.create_task(self._startup()), loop.create_task(stop.wait())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                self._told_to_stop.set()
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
        self._sinks.check()
        settings.tls.check(settings.listen, settings.http, writes_invite=settings.invite_file is not None)
        self._lock = lock_state(folder)
        prepare_ready(settings.ready)
        secret = open_organizer_secret(folder)
        key = open_identity(folder)  # now, so that invites can be made while a large run is created
        self._access = AccessStore(folder)
        addresses = [settings.listen, settings.address, settings.http]
        self._transport = await asyncio.to_thread(Transport, settings.tls, folder, key, addresses)
        if settings.http is not None:
            self._organizer = Organizer(Logins(secret))
            routes = (self._exposition.route, *self._page.routes, *self._organizer.routes)
            may_move = settings.http_may_move
            self._web = WebServer(settings.http, self._transport, self.readiness, routes, may_move=may_move)
            self._web.start()
        if not is_state(folder):
            self.readiness.text = "creating the corpus and the first state"
            text = f"new run in {folder}: creating its corpus and its first state"
            tell(log, logging.INFO, "coordinator.run_created", text, folder=str(folder))
            await self._run_at_start(create_state, folder, settings.run or RunSpec(), settings.bodies, self._go_on)
        self._state = state = await self._run_at_start(open_state, folder)
        self._check_settings(state)
        self.readiness.text = "replaying the ledger"
        replica = await self._run_at_start(lambda: replica_at_head(state, set_aside=True, go_on=self._go_on))
        if replica.step:
            text = f"replayed the ledger: step {replica.step}, all fingerprints match"
            tell(log, logging.INFO, "coordinator.replayed", text, step=replica.step)
        if signed := await self._run_at_start(lambda: sign_older_rows(state, self._go_on)):
            text = f"signed {signed:,} rows that an older version sealed"
            tell(log, logging.INFO, "coordinator.rows_signed", text, rows=signed)
        retention = Retention(state, settings.keep)
        await self._run_at_start(retention.sweep)
        needs = await self._run_at_start(_log_forecast, state, settings.keep)
        recorded = await self._run_at_start(state.ledger.recorded)
        assert self._access is not None
        trust = _trust(state, settings, KeptTrust(self._access, self._workers))
        self._swarm = swarm = assemble(
            state, replica, self._workers, encode_update_parts, settings.wait_for, trust=trust
        )
        swarm.events.watchers += self._watchers
        self._upkeep = Upkeep(
            swarm,
            replica,
            retention,
            settings.evaluate_every,
            settings.evaluate_samples,
            samples=self._web is not None,
            by_nodes=_nodes_evaluate(state, settings),
        )
        if self._web is not None or self._sinks.reads_metrics:
            self._exposition.begin(swarm, settings.keep, needs, recorded.newest)
        if self._web is not None:
            self._open_page(swarm)
        memories = self._sinks.recall()
        totals = await self._run_at_start(self._sinks.totals, memories, swarm)
        self._sinks.begin(swarm, memories, totals, self._exposition)
        await self._listen(swarm)

    def _open_page(self, swarm: Swarm) -> None:
        assert self._access is not None
        assert self._organizer is not None
        self._page.open(swarm)
        self._organizer.panel = AccessPanel(self._access, self._settings.state_dir, swarm)

    async def _run_at_start(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run one part of the startup on a worker. Raises StartInterrupted if told to stop meanwhile."""
        self._go_on()
        result = await self._workers.submit(Job.START, work, *arguments)
        self._go_on()
        return result

    def _go_on(self) -> None:
        """Raise StartInterrupted if told to stop. Any thread may call this."""
        if self._told_to_stop.is_set():
            raise StartInterrupted

    def _check_settings(self, state: RunState) -> None:
        """Raise ConfigError if the settings do not fit the existing run."""
        settings, nodes_max = self._settings, state.contract.round.nodes_max
        if settings.run is not None:
            check_run(state, settings.run)
        if settings.bodies is not None:
            check_bodies(state, settings.bodies)
        if settings.wait_for > nodes_max:
            raise ConfigError(f"--wait-for must be at most the contract's round.nodes_max, {nodes_max}")

    async def _listen(self, swarm: Swarm) -> None:
        listen = self._settings.listen
        host, _, _ = listen.rpartition(":")
        bounds, memory = _bounds(swarm.view.contract)
        assert self._access is not None
        assert self._transport is not None
        admits = self._access if self._transport.invites_needed else Everybody()
        self._server = Server(swarm, door_of(swarm, swarm.state.key, admits), self._transport, bounds)
        bound = await self._server.start(listen)
        self._tell_address(bound)
        self._exposition.listening(bound, memory.total_bytes)
        if self._on_listening is not None:
            self._on_listening(bound)
        contract = swarm.view.contract
        name, parameters = contract.hash.hex(), swarm.view.layout.parameters
        steps, pace = contract.schedule.steps, contract.round.pace
        text = f"contract {name[:16]}: {parameters:,} parameters, {steps} steps, pace {pace}"
        tell(log, logging.INFO, "coordinator.contract", text, contract=name, parameters=parameters, steps=steps)
        self.readiness.swarm = swarm.view
        if self._web is not None:
            log.info("the page is at %s", self._web.address)
            secret = self._settings.state_dir / SECRET_FILE
            log.info("the organizer's panel is at %s/organizer; its secret is in %s", self._web.address, secret)
        self._tell_ready(f"{host}:{bound}", swarm.view.term.number)

    def _tell_address(self, port: int) -> None:
        """Store the address for invites, write the file with one, log the address, and try it."""
        settings = self._settings
        assert self._access is not None
        assert self._transport is not None
        assert self._swarm is not None
        if not self._transport.invites_needed:
            return
        address = settings.address or address_for_invites(settings.listen, port)
        self._access.settings.put(ADDRESS, address)
        self._access.settings.put(PUBLIC_TLS, "1" if self._transport.public_tls else "")
        if settings.invite_file is not None:
            keep_invite_file(settings.invite_file, self._access, settings.state_dir, time.time())
        text = f"invites lead to {address}; make one: thinwire-coordinator invite --state-dir {settings.state_dir}"
        tell(log, logging.INFO, "coordinator.invites", text, address=address)
        fingerprint, public_tls = self._swarm.state.key.public.fingerprint, self._transport.public_tls
        trying = tell_reachability(address, port, fingerprint, public_tls=public_tls)
        self._trying = asyncio.get_running_loop().create_task(trying)

    def _tell_ready(self, address: str, term: int) -> None:
        """Write the ready file and log that nodes can join."""
        page = self._web.address if self._web is not None else None
        write_ready(self._settings.ready, address=address, page=page, term=term)
        text = f"term {term}, listening on {address}"
        tell(log, logging.INFO, "coordinator.listening", text, address=address, page=page, term=term)

    async def _main_loop(self, stop: asyncio.Event) -> None:
        """Run the upkeep until told to stop or until a failure."""
        assert self._swarm is not None
        assert self._access is not None
        assert self._upkeep is not None
        loop = asyncio.get_running_loop()
        stopped = loop.create_task(stop.wait())
        upkeep = loop.create_task(self._upkeep.run())
        bans = loop.create_task(watch_bans(self._swarm, self._access.bans, self._access.bans.newest_decision))
        rotation = loop.create_task(self._rotate())
        try:
            ends: tuple[asyncio.Future[Any], ...] = (stopped, upkeep, bans, rotation, self._swarm.failed)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._swarm.failed, upkeep, bans, rotation):
                if end.done() and (error := end.exception()) is not None:
                    raise error
        finally:
            stopped.cancel()
            upkeep.cancel()
            bans.cancel()
            rotation.cancel()

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
        if self._upkeep is not None:
            self._upkeep.stop()
        if self._trying is not None:
            self._trying.cancel()
        if self._server is not None:
            await self._server.stop(limits.SHUTDOWN_GRACE_S)
        if self._swarm is not None:
            self._swarm.stop()  # otherwise a round could open after the workers are closed
        await self._sinks.close()
        if self._web is not None:
            self._page.close()
            await self._web.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._workers.close)
        if self._state is not None:
            self._state.close()
        if self._access is not None:
            self._access.close()
        if self._lock is not None:
            self._lock.release()


def _bounds(contract: Contract) -> tuple[Bounds, MemoryBound]:
    """The bounds of what may arrive, and of all memory. Logs the latter, and warns if the machine has less."""
    bounds = open_files_for(Bounds(contract.round.nodes_max))
    memory = memory_bound(contract, bounds)
    text = f"memory: {memory.in_words()}"
    tell(log, logging.INFO, "coordinator.memory_bound", text, memory_bytes=memory.total_bytes)
    if memory.total_bytes > (has := machine_bytes()):
        text = f"this machine has {human_bytes(has)} of memory, which may not be enough; lower nodes_max for a new run"
        tell(log, logging.WARNING, "coordinator.memory_small", text, memory_bytes=memory.total_bytes, machine_bytes=has)
    return bounds, memory


def _nodes_evaluate(state: RunState, settings: CoordinatorSettings) -> bool:
    """Whether nodes measure the held-out loss. Logs it if that is not the default."""
    if settings.evaluate == "coordinator":
        return False
    by_nodes, reason = True, "--evaluate nodes"
    if settings.evaluate == "auto":
        by_nodes, reason = choose_nodes(state.contract, state.held_out_sets, settings.evaluate_samples)
    by = "nodes" if by_nodes else "coordinator"
    who = "nodes measure" if by_nodes else "the coordinator measures"
    text = f"{who} the held-out loss: {reason}"
    tell(log, logging.INFO, "coordinator.evaluation_by", text, measured_by=by, reason=reason)
    return by_nodes


def _trust(state: RunState, settings: CoordinatorSettings, store: TrustStore) -> TrustSettings:
    auditor = Auditor(state.contract, state.data, state.blobs) if settings.audit_every else None
    return TrustSettings(store, auditor, max(1, settings.audit_every))


def _log_forecast(state: RunState, keep: int | None) -> list[Need]:
    """Log how much disk space the run will take, and warn if there is too little. Return what each disk needs."""
    forecast, needs = measure(state, keep)
    elsewhere = None if state.bodies.folder == state.folder / "updates" else state.bodies.location
    free = ", ".join(f"{human_bytes(need.free_bytes)} are free in {need.location}" for need in needs)
    text = f"disk: {in_words(forecast, keep, elsewhere)}; {free}"
    tell(log, logging.INFO, "coordinator.disk_forecast", text, total_bytes=forecast.total_bytes)
    for need in needs:
        if need.short_bytes > 0:
            may = "will" if forecast.measured else "may"
            short, location = need.short_bytes, need.location
            text = f"{location} {may} be too small: the run needs {human_bytes(short)} more than is free; make room"
            text += ", or give --keep N" if keep is None else ""
            tell(log, logging.WARNING, "coordinator.disk_too_small", text, place=location, short_bytes=short)
    return needs
