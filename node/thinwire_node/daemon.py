"""The life cycle of a node process: startup, main loop, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from thinwire_common.logs import tell
from thinwire_common.os_errors import in_words, limit_in_words
from thinwire_common.units import human_seconds
from thinwire_common.within import Within
from thinwire_node.backoff import Backoff
from thinwire_node.bootstrap import Bootstrap, Ready, RunBranched
from thinwire_node.exchange.port import Entrance, LinkLost, NotGenuine, SessionReplaced, Surroundings
from thinwire_node.kinds import Machine, name_of
from thinwire_node.machine import RealMachine
from thinwire_node.owner import Owner
from thinwire_node.part import ParametersDiffer, Part, Session, WentBack
from thinwire_node.report import short_name
from thinwire_node.session.record import Record, tell_totals
from thinwire_node.settings import NodeSettings
from thinwire_node.storage.known_coordinators import KnownCoordinators, Route
from thinwire_node.storage.state import Head, NodeState
from thinwire_node.thin_line import ThinLine
from thinwire_node.training.failures import Interrupted
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.speed import LentTime
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError, LocalError, PayloadError, ReplicaError, ThinwireError, UsageError
from thinwire_proto.limits import LOOK_WHILE_PAUSED_S, RECEIPT_WAIT_S
from thinwire_proto.out_of_memory import is_out_of_memory, reason_of, too_little

log = logging.getLogger("thinwire.node")

RESYNCS_IN_VAIN_MAX = 5
"""Resyncs without progress in between. After more of them the node gives up."""
RECONNECTS_MAX = 2
"""Connections in a row that are for what the node has just learned of its run."""
REPLACED_MAX = 5
"""Sessions in a row that another process with the same key has ended. After so many the node leaves it the place."""


class GaveUp(LocalError):
    """No coordinator answered within the time that the volunteer allows."""


class OtherKind(LinkLost):
    """The run's contract, which the node had not known, names another exchange than the node had opened."""


class Node:
    """A node. `machine`: the machine that it runs on; by default, startup opens this one."""

    def __init__(
        self, settings: NodeSettings, machine: Machine | None = None, randomness: random.Random | None = None
    ) -> None:
        self.settings = settings
        self.machine = machine
        self._random = randomness or random.Random()
        options = settings.options
        ranks = 1 if settings.ranks is None else settings.ranks.size
        at_once = MicroBatch(options.micro_batch)
        self.record = Record(lent=LentTime(options.compute_share), at_once=at_once, ranks=ranks)
        self.loss_unit = "token"
        """See `thinwire_proto.task.DataSource.loss_unit`; of the data that the node took up."""
        self.session: Session | None = None
        """The current session. None until the node has joined and holds data and parameters."""
        self.doing = "starting"
        """Activity outside of a session, in words: starting, connecting, fetching the data or a snapshot, leaving,
        left."""
        self._state: NodeState | None = None
        self._bootstrap: Bootstrap | None = None
        self.on_opened: Callable[[], None] | None = None
        """Called once the node holds its state directory and obeys its owner. A ThinwireError from it ends the node."""
        self.leaving = False
        self._owner = Owner(settings.own, self.record)
        self._resyncs_in_vain = 0
        self._replaced_in_a_row = 0
        self._joined = False
        self._told_lost = self._told_retrying = ""
        self._thin_line = ThinLine()
        self._tries_next = False  # at once: there is another address of the coordinator, which was not tried yet
        self.has_joined = asyncio.Event()
        """Set once this process has joined the swarm."""

    @property
    def node_id(self) -> str | None:
        """The node's id, or None while no state directory is open."""
        return self._state.node_id if self._state is not None else None

    @property
    def name(self) -> str:
        """The name that the volunteer chose, or the first digits of the node's id."""
        return self.settings.options.name or short_name(self.node_id or "")

    @property
    def holds_state(self) -> bool:
        """Whether this node holds the lock on its state directory."""
        return self._state is not None

    @property
    def contract(self) -> Contract | None:
        """The contract, or None until the node has joined for the first time."""
        return self._bootstrap.contract if self._bootstrap is not None else None

    @property
    def part(self) -> Part | None:
        """The node's part in the run, or None until it knows the run."""
        return self._bootstrap.part if self._bootstrap is not None else None

    async def run(self, stop: asyncio.Event) -> None:
        """Take part until `stop` is set, the run is complete or enough rounds are done. Raises ThinwireError."""
        try:
            try:
                self._startup()
                async with self._owner.followed(stop):
                    await self._main_loop(stop)
            finally:
                await self._shutdown(told_to_stop=stop.is_set())
        except OSError as error:
            raise LocalError(f"{self.settings.state_dir}: {in_words(error)}") from None
        except (RuntimeError, MemoryError) as error:
            if words := limit_in_words(error):
                raise LocalError(words) from None
            if not is_out_of_memory(error):
                raise
            raise LocalError(too_little(reason_of(error))) from None

    def _startup(self) -> None:
        settings = self.settings
        if self.machine is None:
            options = settings.options
            self.machine = RealMachine(
                settings.state_dir, settings.device, options.cache_bytes, compiles=options.compiles
            )
        self._now = self.machine.clocks.now
        self._state = self.machine.open_state()
        self._owner.open(settings.state_dir, self.machine.clocks)
        if self.on_opened is not None:
            self.on_opened()
        self._bootstrap = self._make_bootstrap(self._state)
        self._route = Route(self._state.known, settings.address)

    def _make_bootstrap(self, state: NodeState) -> Bootstrap:
        assert self.machine is not None
        throttle, machine = self._owner.throttle, self.machine
        return Bootstrap(self.settings, machine, state, self.record, self._random, self._show_doing, throttle)

    async def _main_loop(self, stop: asyncio.Event) -> None:
        """Run sessions one after another, with a pause after each one that is lost. Raises GaveUp."""
        backoff = Backoff(self.settings.give_up_after_s, self._random)
        self._last_contact = self._now()
        while not stop.is_set():
            if await self._owner.rest(self, stop):
                self._last_contact = self._now()  # nobody need answer a node that rests
            progress = self._progress()
            if await self._attempt(stop) or self._owner.is_ending:  # whether or not the session got its receipt
                return
            if self._progress() != progress:
                backoff.reset()
                self._resyncs_in_vain = 0
            if self._tries_next:
                self._tries_next = False
                continue
            await self._pause(backoff, stop)

    async def _attempt(self, stop: asyncio.Event) -> bool:
        """Run one session. Returns whether the node is done; False means that it should connect again."""
        stopped = asyncio.ensure_future(stop.wait())
        session = asyncio.ensure_future(self._session())
        failed = asyncio.ensure_future(self._part_failure())
        interrupted = asyncio.ensure_future(self._owner.wants_break())
        try:
            await asyncio.wait({session, stopped, failed, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                await self._end(session)
            elif interrupted.done() and not session.done():
                await self._owner.interrupt(session, self.part)
                self._tries_next = not self.leaving
                return self.leaving
            elif failed.done() and not session.done():
                await self._end(session)
                failed.result()
            else:
                await session
        except (LinkLost, PayloadError) as error:
            what = "the session ended" if self._joined else f"no coordinator at {self._route.address}"
            text = f"{what}: {error}"
            is_news, self._told_lost = text != self._told_lost, text
            level = logging.WARNING if is_news else logging.DEBUG  # not a line for each attempt of a whole night
            tell(log, level, "node.no_session", text, joined=self._joined, reason=str(error))
            self._thin_line.lost(text)
            known = self._state.known if self._state is not None else KnownCoordinators()
            self._tries_next = not self._joined and self._route.failed(known)
            self._count_replaced(error)
            return False
        except NotGenuine as error:
            text = f"{error}; nothing was applied"
            tell(log, logging.ERROR, "node.row_refused", text, reason=str(error))
            return False
        except WentBack as told:
            await self._go_back(told)
            return False
        except ReplicaError as error:
            self._resync(error)
            return False
        finally:
            for waiting in (stopped, failed, interrupted):
                waiting.cancel()
        return True

    async def _part_failure(self) -> None:
        """Raise what has ended the part outside of a session."""
        if self.part is not None:
            await self.part.failure()
        await asyncio.Event().wait()

    def _count_replaced(self, error: Exception) -> None:
        """Raise UsageError if another process keeps taking this node's place."""
        self._replaced_in_a_row = self._replaced_in_a_row + 1 if isinstance(error, SessionReplaced) else 0
        if self._replaced_in_a_row >= REPLACED_MAX:
            raise UsageError(
                f"another process has joined with this node's key {REPLACED_MAX} times in a row, so there is a copy of "
                f"{self.settings.state_dir} in use: run one of the two, and give the other an empty --state-dir and an "
                "invite of its own"
            )

    async def _pause(self, backoff: Backoff, stop: asyncio.Event) -> None:
        """Wait until the next attempt, or until `stop` is set. Raises GaveUp."""
        if backoff.is_exhausted(self._now() - self._last_contact):
            raise GaveUp(
                f"no coordinator at {self.settings.address} for {self.settings.give_up_after_s:g} s "
                "(--give-up-after): check the address, and that the coordinator runs"
            )
        pause_s, text = backoff.pause_s, f"trying again every {backoff.max_s:.0f} s"
        if (pause := self.record.pause) is not None and self._now() < pause.resumes:
            pause_s = min(LOOK_WHILE_PAUSED_S, pause.resumes - self._now())
            text = f"{pause.text}; looking again every {human_seconds(LOOK_WHILE_PAUSED_S)}"
            self._last_contact = self._now()  # nobody need answer during a pause
        level = logging.DEBUG if text == self._told_retrying else logging.INFO
        self._told_retrying = text
        tell(log, level, "node.retrying", text, pause_s=pause_s)
        with contextlib.suppress(asyncio.TimeoutError):
            async with Within(backoff.jittered_s(pause_s)):
                await self._owner.wants_break(stop)
        backoff.lengthen()

    def _progress(self) -> tuple[int, Head | None]:
        """Values that change when a session makes progress: the counted contributions and the newest sealed row."""
        return self.record.counted, self._state.head if self._state else None

    def _show_doing(self, doing: str) -> None:
        self.doing = doing

    async def _session(self) -> None:
        """Take part in one session. A node that has just learned its run's kind of exchange, or that there is a branch
        of the run, connects once more."""
        for _ in range(RECONNECTS_MAX):
            try:
                return await self._connect_and_take_part()
            except OtherKind as told:
                log.debug("%s", told)
            except RunBranched as told:
                log.info("%s", told)
                self._begin_anew()
        await self._connect_and_take_part()

    def _begin_anew(self) -> None:
        assert self._state is not None
        if self.part is not None:
            self.part.close()
        self._state.forget_run()
        self._bootstrap = self._make_bootstrap(self._state)

    async def _connect_and_take_part(self) -> None:
        assert self.machine is not None
        settings, machine, address = self.settings, self.machine, self._route.address
        surroundings = Surroundings(
            address,
            machine.clocks,
            self.record.traffic,
            replace(settings.invite, address=address) if settings.invite is not None else None,
            thin_line=self._thin_line.is_thin,
            heard_of_standby=self._heard_of_standby,
            throttle=self._owner.throttle,
        )
        self._joined = False
        self.doing = "connecting"
        self._thin_line.is_fetching = True
        try:
            exchange = await machine.kind(name_of(self.contract)).open_exchange(surroundings)
        except ConfigError as error:  # about an address that nobody here has given
            if address == settings.address:
                raise
            raise LinkLost(str(error)) from None
        try:
            ready, head_step = await self._join(exchange)
            self._thin_line.is_fetching = False
            self.loss_unit = ready.data.loss_unit
            self.session = session = ready.part.session(exchange, head_step, ready.data, ready.fetcher)
            self._owner.begins(session)
            try:
                await session.run()
                self.leaving = not self._owner.has_interrupted
                await self._owner.ended(ready.part)
            finally:
                self.session = None
                self._owner.is_over()
                self.doing = "leaving" if self.leaving else self.record.resting or "connecting"
                if self.leaving or self._owner.has_interrupted:
                    with contextlib.suppress(ThinwireError):
                        await exchange.leave(session.trained_through)
        finally:
            if self._joined:
                self._last_contact = self._now()
                self.record.sessions_lost += not self.leaving
            await exchange.close()

    def _heard_of_standby(self, address: str) -> None:
        assert self._state is not None
        self._state.keep_known(replace(self._state.known, standby=address))

    async def _join(self, exchange: Entrance) -> tuple[Ready, int]:
        """Join and fetch missing data and parameters. Returns the number of sealed steps too."""
        assert self._bootstrap is not None
        assert self._state is not None
        kind, name = name_of(self.contract), self.name
        admission = await self._bootstrap.join(exchange, name)
        if self.settings.invite is not None:
            self._state.keep_enrolment(self.settings.invite, self.settings.options.name)
        if name_of(admission.contract) != kind:
            raise OtherKind(f"this run uses the exchange {name_of(admission.contract)!r}, so the node connects again")
        self._joined = True
        self._told_lost = self._told_retrying = ""
        self.record.sessions += 1
        address, given, known = self._route.address, self.settings.address, self._state.known
        self._route.joined()
        self._state.keep_known(known.admitted_by(address, given))
        text, node_id = f"joined at {address} as {name}", self._state.node_id
        tell(log, logging.INFO, "node.joined", text, address=address, name=name, node_id=node_id)
        self.has_joined.set()
        return await self._bootstrap.take_up(exchange, admission), admission.step

    def _resync(self, error: ReplicaError) -> None:
        """Give up the replica after an error, so that the next session fetches it again."""
        tell(log, logging.WARNING, "node.resync", f"{error}; resyncing", reason=str(error))
        self.record.resyncs += 1
        self.record.mismatches += isinstance(error, ParametersDiffer)
        text = "the parameters differ from the swarm's {} times in a row, without an update in between: this machine's "
        self._fetch_again(text + "memory, disk or device may be faulty; try --device cpu")

    def _fetch_again(self, text: str) -> None:
        """Drop the replica, so that the next session fetches it. text: why the node gives up after too many times."""
        self._resyncs_in_vain += 1
        if self._resyncs_in_vain > RESYNCS_IN_VAIN_MAX:
            raise LocalError(text.format(self._resyncs_in_vain))
        if self._bootstrap is not None:
            self._bootstrap.drop_replica()

    async def _go_back(self, told: WentBack) -> None:
        """Drop the momentum and the replica, so that the next session fetches the one that the swarm goes on with."""
        assert self.part is not None
        self._fetch_again("the run went back {} times in a row, without an update in between; ask the organizer")
        log.info("%s", f"{told}; the node follows")
        await self.part.drop_momentum(str(told))

    async def _end(self, session: asyncio.Future[None]) -> None:
        """Stop the running session. Waits up to RECEIPT_WAIT_S for a pending receipt."""
        self.leaving = True
        if self.part is not None:
            self.part.interrupt()
        if self.session is not None:
            self.session.leave()
            await asyncio.wait({session}, timeout=RECEIPT_WAIT_S)
        session.cancel()
        with contextlib.suppress(asyncio.CancelledError, ThinwireError, Interrupted):
            await session

    async def _shutdown(self, *, told_to_stop: bool) -> None:
        part = self.part
        try:
            self.doing = "leaving"
            if self._state is not None:
                self._state.blobs.close()
            if part is not None:
                await part.stop()
        finally:
            if part is not None:
                part.close()
            if self._state is not None:
                self._state.close()
            self.doing = "left"
            if told_to_stop or self.record.sessions:  # else an error at the start follows, and all totals are 0
                tell_totals(self.record, part.done_in_words() if part is not None else "nothing")
