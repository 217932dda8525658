"""One life of a coordinator: startup, main loop, shutdown."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from thinwire_common.units import human_bytes
from thinwire_coordinator.evaluation import HeldOut, SampleBudget
from thinwire_coordinator.ledger.disk_forecast import Need, in_words, measure
from thinwire_coordinator.ledger.retention import NotKept, Retention
from thinwire_coordinator.ledger.state_directory import (
    State,
    check_bodies,
    check_run,
    create_state,
    is_state,
    lock_state,
    open_state,
    replica_at_head,
)
from thinwire_coordinator.observe.exposition import Exposition
from thinwire_coordinator.rpc.server import Server
from thinwire_coordinator.swarm.events import LossMeasured, Sampled
from thinwire_coordinator.swarm.feed import EncodedUpdate, Feed, encoded_update
from thinwire_coordinator.swarm.swarm import Swarm
from thinwire_coordinator.swarm.workers import Workers
from thinwire_coordinator.web.page import Page
from thinwire_coordinator.web.server import Readiness, Web
from thinwire_proto import limits
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import MEND_DISK, ConfigError, Damaged, LedgerError, LocalError, ThinwireError
from thinwire_proto.exact.replica import Replica

log = logging.getLogger("thinwire.coordinator")

SAMPLE_PROMPT = "def "


@dataclass(frozen=True)
class Settings:
    """What one coordinator process is told; the run itself is in the contract."""

    state_dir: Path
    listen: str
    run: RunSpec | None
    wait_for: int
    evaluate_every: int
    bodies: str | None = None
    """Where bodies lie; None: where they lay, or in the state directory."""
    keep: int | None = None
    """See `retention`."""
    http: str | None = None
    """Where the page and the metrics are; None: nowhere."""
    http_may_move: bool = False
    """Whether another port will do."""


class Coordinator:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workers = Workers()
        self._lock: FileLock | None = None
        self._state: State | None = None
        self._server: Server | None = None
        self._readiness = Readiness()
        self._exposition = Exposition(self._readiness, self._workers)
        self._page = Page(self._readiness)
        self._web: Web | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises LocalError if it cannot start, or cannot go on."""
        try:
            await self._startup()
            await self._main_loop(stop)
        except LedgerError as error:
            if error.step is not None or isinstance(error, Damaged):
                raise
            # it cannot be read or written: a full disk, or one that fails
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

    async def _startup(self) -> None:
        folder = self._settings.state_dir
        self._lock = lock_state(folder)
        if self._settings.http is not None:
            routes, may_move = (self._exposition.route, *self._page.routes), self._settings.http_may_move
            self._web = Web(self._settings.http, self._readiness, routes, may_move=may_move)
            self._web.start()
        if not is_state(folder):
            self._readiness.text = "making the corpus and the first state"
            log.info("new run in %s: making its corpus and its first state", folder)
            await self._workers.disk.submit(
                create_state, folder, self._settings.run or RunSpec(), self._settings.bodies
            )
        self._state = state = await self._workers.disk.submit(open_state, folder)
        if self._settings.run is not None:
            check_run(state, self._settings.run)
        if self._settings.bodies is not None:
            check_bodies(state, self._settings.bodies)
        self._readiness.text = "replaying the ledger"
        replica = await self._workers.disk.submit(lambda: replica_at_head(state, set_aside=True))
        if replica.step:
            log.info("replayed the ledger: step %d, every fingerprint as sealed", replica.step)
        self._retention = Retention(state, self._settings.keep)
        await self._workers.disk.submit(self._retention.sweep)
        needs = await self._workers.disk.submit(_foretell, state, self._settings.keep)
        term = await self._workers.disk.submit(state.ledger.begin_term)

        nodes_max = state.contract.round.nodes_max
        if self._settings.wait_for > nodes_max:
            raise ConfigError(f"--wait-for must be at most the contract's round.nodes_max, {nodes_max}")

        async def read(step: int) -> EncodedUpdate:
            return await self._workers.reading.submit(_encoded_update, state, step)

        feed = Feed(read, replica.step)
        self._swarm = Swarm(state, replica, term, self._workers, feed, self._settings.wait_for)
        self._replica = replica
        self._evaluate_every = self._settings.evaluate_every
        self._held_out = HeldOut(state.contract, state.corpus)
        self._samples = SampleBudget()
        if self._web is not None:
            losses = await self._workers.disk.submit(state.ledger.losses)
            self._exposition.begin(self._swarm, self._settings.keep, needs, losses)
            self._page.open(self._swarm)
        await self._listen()

    async def _listen(self) -> None:
        listen = self._settings.listen
        host, _, _ = listen.rpartition(":")
        self._server = Server(self._swarm, self._exposition.traffic)
        bound = await self._server.start(listen)
        self._exposition.listening(bound)
        contract = self._swarm.contract
        log.info(
            "contract %s: %s parameters, %d steps, pace %s",
            contract.hash.hex()[:16],
            f"{self._swarm.layout.parameters:,}",
            contract.schedule.steps,
            contract.round.pace,
        )
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            log.warning("%s is open to the network, and nothing is encrypted or signed yet", listen)
        self._readiness.swarm = self._swarm
        if self._web is not None:
            log.info("the page is at %s", self._web.address)
        log.info("term %d, listening on %s:%d", self._swarm.term.number, host, bound)

    async def _main_loop(self, stop: asyncio.Event) -> None:
        """Look after the run at every sealed step, until told to stop or unable to go on."""
        loop = asyncio.get_running_loop()
        stopped = loop.create_task(stop.wait())
        watch = loop.create_task(self._look_after())
        try:
            ends: tuple[asyncio.Future[Any], ...] = (stopped, watch, self._swarm.failed)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._swarm.failed, watch):
                if end.done() and (error := end.exception()) is not None:
                    raise error
        finally:
            stopped.cancel()
            watch.cancel()

    async def _look_after(self) -> None:
        """Measure the held-out loss every so many steps, and write a snapshot when updates have come to weigh one."""
        state, steps = self._state, self._swarm.contract.schedule.steps
        assert state is not None
        measured = max((step for step, _ in await self._workers.disk.submit(state.ledger.losses)), default=None)
        newest = state.snapshot_steps()[-1]
        while True:
            step = self._swarm.feed.step
            last = step == steps
            to_measure = measured is None or (step > measured and (last or step - measured >= self._evaluate_every))
            to_save = step > newest and (last or await self._workers.disk.submit(self._snapshot_is_due, newest))
            if to_measure or to_save:
                # a copy, so that neither a measurement nor a disk delays the replica
                copy = await self._workers.replica.submit(self._replica.clone)
                if to_measure:
                    measured = copy.step
                    await self._measure(copy)
                if to_save:
                    newest = copy.step
                    await self._workers.reading.submit(state.save_snapshot, copy)
                    log.info("step %d: snapshot written", copy.step)
                    await self._workers.reading.submit(self._retention.trim)
            await self._swarm.sealed.wait()
            self._swarm.sealed.clear()

    def _snapshot_is_due(self, newest: int) -> bool:
        """When the bodies since the newest one weigh as much as it does: catching up never costs more than twice."""
        assert self._state is not None
        return self._state.ledger.body_bytes_since(newest) > self._state.snapshot_path(newest).stat().st_size

    async def _measure(self, replica: Replica) -> None:
        assert self._state is not None
        loss = await self._workers.evaluation.submit(self._held_out.measure, replica)
        if math.isfinite(loss):
            await self._workers.disk.submit(self._state.ledger.record_loss, replica.step, loss)
            log.info("step %d: held-out loss %.3f nats a token", replica.step, loss)
        else:
            log.warning("step %d: the held-out loss is not finite; the run has diverged", replica.step)
        self._swarm.registry.events.tell(LossMeasured(replica.step, loss))
        self._swarm.measured_step = replica.step
        if self._web is not None and math.isfinite(loss) and replica.step:
            await self._sample(replica.step)

    async def _sample(self, step: int) -> None:
        """What the model that was just measured writes, for the page; seldom enough to cost next to nothing."""
        assert self._state is not None
        if not self._samples.due(time.process_time(), last=step == self._state.contract.schedule.steps):
            return
        text, seconds = await self._workers.evaluation.submit(self._held_out.sample, SAMPLE_PROMPT, step)
        self._samples.took(seconds)
        if text is not None:
            self._swarm.registry.events.tell(Sampled(step, SAMPLE_PROMPT, text))

    async def _shutdown(self) -> None:
        self._readiness.ending = True
        if self._server is not None:
            self._held_out.stop()
            await self._server.stop(limits.SHUTDOWN_GRACE_S)
            self._swarm.driver.stop()  # or a round could open when nobody works any more
        if self._web is not None:
            self._page.close()
            await self._web.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._workers.close)
        if self._state is not None:
            self._state.close()
        if self._lock is not None:
            self._lock.release()


def _foretell(state: State, keep: int | None) -> list[Need]:
    """Say how much disk the run will take, and warn if there is too little. Returns what each disk will need."""
    forecast, needs = measure(state, keep)
    elsewhere = None if state.bodies.folder == state.folder / "updates" else state.bodies.place
    free = ", ".join(f"{human_bytes(need.free_bytes)} are free in {need.place}" for need in needs)
    log.info("disk: %s; %s", in_words(forecast, keep, elsewhere), free)
    for need in needs:
        if need.short_bytes > 0:
            may = "will" if forecast.measured else "may"
            log.warning(
                "%s %s be too small: %s more will be needed than is free; make room%s",
                need.place,
                may,
                human_bytes(need.short_bytes),
                ", or give --keep N" if keep is None else "",
            )
    return needs


def _encoded_update(state: State, step: int) -> EncodedUpdate:
    row = state.reading_ledger.row(step)
    try:
        return encoded_update(step, row.canonical(), state.bodies.get(row.body_hash, row.body_bytes))
    except LedgerError:
        oldest = state.snapshot_steps()[0]
        if step >= oldest:
            raise
        text = f"step {step}: updates are kept since step {oldest}; join again, and take a snapshot"
        raise NotKept(text, step) from None
