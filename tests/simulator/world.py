"""A simulated swarm: a coordinator, named nodes and a network.

One seed determines all random choices.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from simulator.invariants import check
from simulator.machine import DriftingClock, Hardware, SimulatedMachine
from simulator.network import Line, Network
from simulator.replicas import SharedReplica, SharedReplicas
from simulator.second_machine import SecondMachine
from simulator.sim_coordinator import REFUSED, SimCoordinator, make_state
from simulator.synthetic import MemoryState, SyntheticSent, SyntheticTrainer, scratch_folder
from simulator.virtual_time import Killed
from simulator.volunteer import Broken, Volunteer, work_of
from thinwire_coordinator.hall.access.settings import Order, Pause
from thinwire_coordinator.hall.ledger.backup import LEDGER
from thinwire_coordinator.star.trust.evidence import RoundEvidence
from thinwire_node.daemon import Node
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_proto.errors import ThinwireError
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire.rows import Row

PATIENCE_S = 100_000.0
"""Virtual seconds to wait for a condition before the simulation fails."""


class World:
    def __init__(self, seed: int, spec: dict[str, Any], wait_for: int = 1) -> None:
        self.random = random.Random(seed)
        self.network = Network(self.random, Line())
        self.shared = SharedReplicas()
        self.volunteers: dict[str, Volunteer] = {}
        self.sim_coordinator: SimCoordinator | None = None
        """The one whose ledger counts: of the machine that was promoted last."""
        self.second = SecondMachine(self)
        self.after_standby = False
        self.sent: dict[bytes, frozenset[int]] = {}
        """The sample positions of each contribution, by its hash."""
        self.extractions: dict[bytes, SyntheticSent] = {}
        """The votes of each contribution, by its hash."""
        self.put_back_in_part = 0
        """The number of times that part of an extraction was put back. `check` updates it."""
        self.wait_for = wait_for
        self._pause: Pause | None = None
        self._orders: list[Order] = []
        self._scratch = tempfile.TemporaryDirectory(dir=scratch_folder())
        self.folder = Path(self._scratch.name) / "coordinator"
        make_state(self.folder, spec, seed)

    def close(self) -> None:
        self.kill_coordinator()
        self.second.close()
        for volunteer in self.volunteers.values():
            volunteer.state.close()
        self._scratch.cleanup()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # the coordinator

    def start_coordinator(self, keep: int | None = None) -> None:
        """Start the coordinator. keep: the number of snapshots to keep, with the updates since the oldest of them;
        None: keep every update and no snapshot."""
        self.sim_coordinator = SimCoordinator(
            self.folder, self.shared, self.random, self.wait_for, keep, after_standby=self.after_standby
        )
        self._tell_pause()
        self._tell_orders()

    def amend(self, changes: Mapping[str, Any]) -> None:
        """The organizer orders an amendment; a real coordinator reads it from access.sqlite."""
        self._orders.append(Order(f"order {len(self._orders)}", changes, "the organizer said so"))
        self._tell_orders()

    def _tell_orders(self) -> None:
        if self.sim_coordinator is not None and (refused := self.sim_coordinator.swarm.amend(self._orders)):
            raise AssertionError(f"refused: {refused}")

    def pause(self, length_s: float) -> None:
        """The organizer pauses the run; a real coordinator reads it from access.sqlite."""
        self._pause = Pause(self.now, self.now + length_s)
        self._tell_pause()
        asyncio.get_running_loop().call_later(length_s, self._tell_pause)

    def resume(self) -> None:
        self._pause = None
        self._tell_pause()

    def _tell_pause(self) -> None:
        pause = self._pause if self._pause is not None and self._pause.holds(self.now) else None
        if self.sim_coordinator is not None:
            self.sim_coordinator.swarm.pause(pause)

    def kill_coordinator(self) -> None:
        sim_coordinator, self.sim_coordinator = self.sim_coordinator, None
        if sim_coordinator is not None:
            sim_coordinator.kill()
            self.second.cut_line()
            for connection in list(self.network.connections.values()):
                connection.die("the coordinator is gone")

    def lose_rows(self, step: int) -> None:
        """Delete the rows from a step on, as in an older copy of the ledger. No coordinator runs meanwhile."""
        with closing(sqlite3.connect(self.folder / LEDGER)) as db, db:
            for table in ("rows", "contributions"):
                db.execute(f"DELETE FROM {table} WHERE step >= ?", (step,))

    def living_coordinator(self) -> SimCoordinator:
        if self.sim_coordinator is None:
            raise Broken("no coordinator runs")
        if self.sim_coordinator.swarm.tasks.failed.done():
            raise Broken(f"the coordinator failed: {self.sim_coordinator.swarm.tasks.failed.exception()!r}")
        return self.sim_coordinator

    @property
    def step(self) -> int:
        return self.living_coordinator().swarm.feed.step

    @property
    def round(self) -> int:
        return self.living_coordinator().swarm.view.round_number

    # nodes

    def add(self, name: str, hardware: Hardware, drift: float = 0.0) -> Volunteer:
        number = len(self.volunteers)
        clock = DriftingClock(self.random.uniform(0, 1e6), drift)
        volunteer = Volunteer(name, number, hardware, clock, self._disk())
        self.volunteers[name] = volunteer
        return volunteer

    def _disk(self) -> MemoryState:
        state = self.living_coordinator().state
        key = SecretKey(hashlib.sha256(self.random.getrandbits(128).to_bytes(16, "big")).digest())
        return MemoryState(key, state.data)

    def start(self, volunteer: Volunteer) -> None:
        volunteer.lives += 1
        volunteer.state.frozen = False
        machine = SimulatedMachine(
            volunteer.name,
            volunteer.hardware,
            volunteer.clock,
            volunteer.state,
            self.network,
            lambda address: self.second.service_at(address, volunteer.name),
            self.shared,
            random.Random(self.random.getrandbits(64)),
            lambda: self._note_sent(volunteer),
        )
        hardware = volunteer.hardware
        options = NodeOptions(volunteer.name, hardware.micro_batch, None, compute_share=hardware.compute_share)
        settings = NodeSettings("simulated:1", Path(volunteer.name), "auto", options, None)
        node = Node(settings, machine, random.Random(self.random.getrandbits(64)))
        volunteer.machine, volunteer.node, volunteer.stop = machine, node, asyncio.Event()
        volunteer.task = asyncio.get_running_loop().create_task(self._life(volunteer, node, volunteer.stop))

    async def _life(self, volunteer: Volunteer, node: Node, stop: asyncio.Event) -> None:
        try:
            await node.run(stop)
        except (Killed, asyncio.CancelledError):
            pass
        except (ThinwireError, RuntimeError) as error:
            volunteer.failures += 1
            volunteer.error = error

    def kill(self, volunteer: Volunteer) -> None:
        if volunteer.machine is not None and volunteer.task is not None:
            volunteer.machine.kill()
            volunteer.task.cancel()

    async def leave(self, volunteer: Volunteer) -> None:
        """Press Ctrl-C and wait until the node has left."""
        if volunteer.stop is not None and volunteer.task is not None:
            volunteer.stop.set()
            with suppress(asyncio.CancelledError):
                await volunteer.task

    def lose_disk(self, volunteer: Volunteer) -> None:
        volunteer.state.close()
        volunteer.state = self._disk()

    def mistake(self, volunteer: Volunteer) -> None:
        """Put the contract of another run on its disk, of a model with other shapes."""
        contract = self.living_coordinator().state.contract
        first, *rest = contract.parameters
        wider = first.model_copy(update={"shape": (first.shape[0], 2 * first.shape[1])})
        other = contract.model_copy(update={"parameters": (wider, *rest)})
        volunteer.state.write("contract.json", other.written)

    def flip(self, volunteer: Volunteer) -> None:
        assert volunteer.node is not None
        work = work_of(volunteer.node)
        assert work is not None
        replica = work.replica
        assert isinstance(replica, SharedReplica)
        replica.differ()

    def claim(self, volunteer: Volunteer, ahead: int) -> None:
        """Make its contributions claim a later round than the open one."""
        self.network.rounds_ahead[volunteer.name] = ahead

    def suspend(self, volunteer: Volunteer, seconds: float) -> None:
        """Close the lid: the machine sends and runs nothing, and its clock stops."""
        self.stall(volunteer, seconds)
        volunteer.clock.sleep(seconds)

    def stall(self, volunteer: Volunteer, seconds: float) -> None:
        """Act as SIGSTOP: the machine's connection stays open, but the node does not answer."""
        assert volunteer.machine is not None
        volunteer.machine.slow_until = self.now + seconds
        self.network.cut_off(volunteer.name)
        asyncio.get_running_loop().call_later(seconds, self.network.reconnect, volunteer.name)

    def suspect(self, volunteer: Volunteer) -> None:
        """Have as many differing fingerprints noted of a node as make it suspected."""
        trust = self.living_coordinator().swarm.observer.trust
        while not trust.of(volunteer.state.node_id).suspected:
            trust.observe(RoundEvidence(self.round, mismatched=(volunteer.state.node_id,)), 0.0)

    async def ban(self, volunteer: Volunteer) -> None:
        """Ban a node as the organizer would: its session ends, and it is refused from now on."""
        sim_coordinator = self.living_coordinator()
        sim_coordinator.gate.banned.add(volunteer.state.node_id)
        sim_coordinator.swarm.expel(volunteer.state.node_id, REFUSED)

    def poison(self, volunteer: Volunteer) -> None:
        self.trainer(volunteer).finite = False

    def fail(self, volunteer: Volunteer) -> None:
        """Make its next micro-batch raise."""
        self.trainer(volunteer).raises = True

    def trainer(self, volunteer: Volunteer) -> SyntheticTrainer:
        assert volunteer.machine is not None
        assert volunteer.machine.trainer is not None
        return volunteer.machine.trainer

    # waiting

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let time pass until a condition holds. Checks it every tenth of a second."""
        end = self.now + PATIENCE_S
        while not holds():
            if self.now > end:
                raise Broken(f"waited {PATIENCE_S:,.0f} virtual seconds in vain: {what}")
            await asyncio.sleep(0.1)

    def _note_sent(self, volunteer: Volunteer) -> None:
        work = work_of(volunteer.node) if volunteer.node else None
        pending = work.pending if work else None
        if pending is not None and isinstance(pending.sent, SyntheticSent):
            self.sent[pending.hash] = pending.sent.positions
            self.extractions[pending.hash] = pending.sent
            volunteer.sent |= pending.sent.positions

    # invariants

    async def check(self) -> str:
        """See `invariants.check`."""
        return await check(self)

    def nowhere(self, volunteer: Volunteer) -> set[int]:
        """Positions that it has sent, but that are neither in an update nor in its momentum."""
        settled = {at for row in self.living_coordinator().state.ledger.rows() for at in self._stands_for(row)}
        work = work_of(volunteer.node) if volunteer.node else None
        out = work.pending.sent.positions if work and work.pending else frozenset()  # type: ignore[attr-defined]
        return volunteer.sent - settled - self.trainer(volunteer).holds() - out

    def _stands_for(self, row: Row) -> list[int]:
        return [position for entry in row.counted for position in self.sent.get(entry.contribution, ())]
