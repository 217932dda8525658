"""A simulated swarm: a coordinator, nodes by name, a network, and the checks that hold whatever happens.

Everything that is decided here by chance is decided by one seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deploy.simulation.hub import Hub, make_state
from deploy.simulation.machine import DriftingClock, Hardware, SimulatedMachine
from deploy.simulation.made_up import MadeUpSent, MadeUpTrainer, MemoryState, scratch_folder
from deploy.simulation.network import Line, Network
from deploy.simulation.replicas import Shared, SharedReplica
from deploy.simulation.virtual_time import Killed
from thinwire_coordinator.verify import verify
from thinwire_node.daemon import Node, Settings
from thinwire_node.session import Habits
from thinwire_proto.errors import ThinwireError
from thinwire_proto.rows import Row
from thinwire_proto.sign_form import signs_of
from thinwire_proto.strongest import left_out
from thinwire_proto.votes import Merged, merge

PATIENCE_S = 100_000.0
"""Virtual seconds after which something that does not come to hold never will."""


class Broken(AssertionError):
    """A promise does not hold. The text says which, and when."""


@dataclass
class Volunteer:
    """A machine by name, through all lives of the process on it."""

    name: str
    number: int
    hardware: Hardware
    clock: DriftingClock
    state: MemoryState
    lives: int = 0
    machine: SimulatedMachine | None = None
    node: Node | None = None
    task: asyncio.Task[None] | None = None
    stop: asyncio.Event | None = None
    failures: int = 0
    sent: set[int] = field(default_factory=set)
    """Positions that contributions of it stood for, whatever became of them."""
    error: BaseException | None = None

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()


class World:
    def __init__(self, seed: int, spec: dict[str, Any], wait_for: int = 1) -> None:
        self.random = random.Random(seed)
        self.network = Network(self.random, Line())
        self.shared = Shared()
        self.volunteers: dict[str, Volunteer] = {}
        self.hub: Hub | None = None
        self.sent: dict[bytes, frozenset[int]] = {}
        """What each contribution stands for, by its hash."""
        self.cuts: dict[bytes, MadeUpSent] = {}
        self.put_back_in_part = 0
        """How often, as `check` has found it last."""
        self._wait_for = wait_for
        self._scratch = tempfile.TemporaryDirectory(dir=scratch_folder())
        self.folder = Path(self._scratch.name) / "coordinator"
        make_state(self.folder, spec, seed)

    def close(self) -> None:
        self.kill_coordinator()
        for volunteer in self.volunteers.values():
            volunteer.state.close()
        self._scratch.cleanup()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # the coordinator

    def start_coordinator(self) -> None:
        self.hub = Hub(self.folder, self.shared, self.random, self._wait_for)

    def kill_coordinator(self) -> None:
        hub, self.hub = self.hub, None
        if hub is not None:
            hub.kill()
            for connection in list(self.network.connections.values()):
                connection.die("the coordinator is gone")

    def living_hub(self) -> Hub:
        if self.hub is None:
            raise Broken("no coordinator runs")
        if self.hub.swarm.failed.done():
            raise Broken(f"the coordinator cannot go on: {self.hub.swarm.failed.exception()!r}")
        return self.hub

    @property
    def step(self) -> int:
        return self.living_hub().feed.step

    @property
    def round(self) -> int:
        return self.living_hub().swarm.round_number

    # nodes

    def add(self, name: str, hardware: Hardware, drift: float = 0.0) -> Volunteer:
        number = len(self.volunteers)
        clock = DriftingClock(self.random.uniform(0, 1e6), drift)
        volunteer = Volunteer(name, number, hardware, clock, self._disk())
        self.volunteers[name] = volunteer
        return volunteer

    def _disk(self) -> MemoryState:
        state = self.living_hub().state
        return MemoryState(f"{self.random.getrandbits(128):032x}", state.contract, state.corpus)

    def start(self, volunteer: Volunteer) -> None:
        volunteer.lives += 1
        volunteer.state.frozen = False
        machine = SimulatedMachine(
            volunteer.name,
            volunteer.hardware,
            volunteer.clock,
            volunteer.state,
            self.network,
            lambda: self.hub.service if self.hub else None,
            self.shared,
            random.Random(self.random.getrandbits(64)),
            lambda: self._note_sent(volunteer),
        )
        habits = Habits(volunteer.name, volunteer.hardware.micro_batch, None)
        settings = Settings("simulated:1", Path(volunteer.name), "auto", habits, None)
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
        """Ctrl-C, and wait until it has left."""
        if volunteer.stop is not None and volunteer.task is not None:
            volunteer.stop.set()
            with suppress(asyncio.CancelledError):
                await volunteer.task

    def lose_disk(self, volunteer: Volunteer) -> None:
        volunteer.state.close()
        volunteer.state = self._disk()

    def mistake(self, volunteer: Volunteer) -> None:
        """Its disk holds the contract of another run, of a model with other shapes."""
        contract = self.living_hub().state.contract
        first, *rest = contract.parameters
        wider = first.model_copy(update={"shape": (first.shape[0], 2 * first.shape[1])})
        other = contract.model_copy(update={"parameters": (wider, *rest)})
        volunteer.state.write("contract.json", other.canonical())

    def flip(self, volunteer: Volunteer) -> None:
        assert volunteer.node is not None
        assert volunteer.node.work is not None
        replica = volunteer.node.work.replica
        assert isinstance(replica, SharedReplica)
        replica.differ()

    def claim(self, volunteer: Volunteer, ahead: int) -> None:
        """Its contributions say that they are for a later round than the one that is open."""
        self.network.rounds_ahead[volunteer.name] = ahead

    def suspend(self, volunteer: Volunteer, seconds: float) -> None:
        """The lid is closed: nothing gets through and nothing runs, and its clock stands still."""
        self.stall(volunteer, seconds)
        volunteer.clock.sleep(seconds)

    def stall(self, volunteer: Volunteer, seconds: float) -> None:
        """SIGSTOP: the machine's connection stays open, and nobody answers on it."""
        assert volunteer.machine is not None
        volunteer.machine.slow_until = self.now + seconds
        self.network.cut_off(volunteer.name)
        asyncio.get_running_loop().call_later(seconds, self.network.reconnect, volunteer.name)

    def poison(self, volunteer: Volunteer) -> None:
        self.trainer(volunteer).finite = False

    def fail(self, volunteer: Volunteer) -> None:
        """Its next micro-batch raises."""
        self.trainer(volunteer).raises = True

    def trainer(self, volunteer: Volunteer) -> MadeUpTrainer:
        assert volunteer.machine is not None
        assert volunteer.machine.trainer is not None
        return volunteer.machine.trainer

    # waiting

    async def until_any(self, holds: Callable[[], bool], what: str) -> None:
        """The same, where no coordinator need be there."""
        end = self.now + PATIENCE_S
        while not holds():
            if self.now > end:
                raise Broken(f"waited {PATIENCE_S:,.0f} virtual seconds in vain: {what}")
            await asyncio.sleep(0.1)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let time pass until something holds, looking at every tenth of a second."""
        end = self.now + PATIENCE_S
        while not holds():
            if self.now > end:
                raise Broken(f"waited {PATIENCE_S:,.0f} virtual seconds in vain: {what}")
            await asyncio.sleep(0.1)

    def _note_sent(self, volunteer: Volunteer) -> None:
        work = volunteer.node.work if volunteer.node else None
        pending = work.pending if work else None
        if pending is not None and isinstance(pending.sent, MadeUpSent):
            self.sent[pending.hash] = pending.sent.positions
            self.cuts[pending.hash] = pending.sent
            volunteer.sent |= pending.sent.positions

    # what holds whatever happens

    async def check(self) -> str:
        """Everything that must hold at any time; returns a name for all that happened: equal names, equal histories."""
        hub = self.living_hub()
        self._check_counted_once(hub)
        self._check_merged(hub)
        self._check_left_out(hub)
        self._check_leases(hub)
        await self._check_replicas(hub)
        verify(self.folder, lambda said: None)
        digest = hashlib.sha256()
        for row in hub.state.ledger.rows():
            digest.update(row.hash)
        return digest.hexdigest()

    def _check_counted_once(self, hub: Hub) -> None:
        counted: dict[int, tuple[int, str]] = {}
        for row in hub.state.ledger.rows():
            for entry in row.counted:
                for position in self.sent.get(entry.contribution, ()):
                    if position in counted:
                        raise Broken(f"position {position} is in step {row.step} and in {counted[position]}")
                    counted[position] = (row.step, entry.node)
        settled = set(counted)
        for volunteer in self.volunteers.values():
            trainer = volunteer.machine.trainer if volunteer.machine else None
            if not volunteer.running or trainer is None:
                continue
            if both := trainer.holds() & settled:
                raise Broken(f"{volunteer.name} still has in its momentum what was counted: {sorted(both)[:5]}")
            work = volunteer.node.work if volunteer.node else None
            out = work.pending.sent.positions if work and work.pending else frozenset()  # type: ignore[attr-defined]
            if neither := trainer.trained - trainer.holds() - trainer.lost() - settled - out:
                raise Broken(f"{volunteer.name} has trained on what is nowhere: {sorted(neither)[:5]}")

    def nowhere(self, volunteer: Volunteer) -> set[int]:
        """Positions that it has sent and that are in no update, nor with it any more."""
        settled = {at for row in self.living_hub().state.ledger.rows() for at in self._stands_for(row)}
        work = volunteer.node.work if volunteer.node else None
        out = work.pending.sent.positions if work and work.pending else frozenset()  # type: ignore[attr-defined]
        return volunteer.sent - settled - self.trainer(volunteer).holds() - out

    def _stands_for(self, row: Row) -> list[int]:
        return [position for entry in row.counted for position in self.sent.get(entry.contribution, ())]

    def _check_merged(self, hub: Hub) -> None:
        """Without k_down: each update is the merge of what its row names, all of it and nothing else."""
        demo, layout = hub.state.contract.demo, hub.swarm.layout
        if demo.k_down:
            return
        for row in hub.state.ledger.rows():
            named = [(self.cuts[entry.contribution].votes(), entry.weight) for entry in row.counted]
            found, due = hub.state.update(row).merged, merge(named, layout.components)
            if isinstance(found, Merged):
                pairs: list[tuple[Any, Any]] = [(found.components, due.components), (found.values, due.values)]
            else:
                signs = signs_of(due, layout, demo.transform, row.step)
                pairs = [(found.stepped, signs.stepped), (found.positive, signs.positive)]
            if not all(np.array_equal(one, other) for one, other in pairs):
                raise Broken(f"the update of step {row.step} is not the merge of what it names")

    def _check_left_out(self, hub: Hub) -> None:
        """With k_down: who went on with its momentum put back what updates left out, once, and nothing else."""
        contract, layout = hub.state.contract, hub.swarm.layout
        if not contract.demo.k_down:
            return
        expected: dict[int, tuple[int, frozenset[int]]] = {}
        for row in hub.state.ledger.rows():
            merged = hub.state.update(row).merged
            assert isinstance(merged, Merged)  # with k_down they are votes
            for cut in (self.cuts[name] for name in row.contributions):
                missing = left_out(cut.components.numpy(), merged, layout, contract.demo.k_down)
                expected[cut.number] = (row.step, frozenset(cut.components[torch.from_numpy(missing)].tolist()))
        self.put_back_in_part = 0
        for volunteer in self.volunteers.values():
            trainer = volunteer.machine.trainer if volunteer.machine else None
            work = volunteer.node.work if volunteer.node else None
            if not volunteer.running or trainer is None or work is None or work.replica is None:
                continue
            step, made_up = work.replica.step, trainer.made_up
            due = {cut: missing for cut, (at, missing) in expected.items() if at < step and cut in made_up.cuts}
            if sorted(made_up.left_out) != sorted((cut, missing) for cut, missing in due.items() if missing):
                raise Broken(f"{volunteer.name} put something else back than what updates left out")
            self.put_back_in_part += len(made_up.left_out)

    def _check_leases(self, hub: Hub) -> None:
        cursor, free, held = hub.swarm.books.leases.plain()
        seen: set[int] = set()
        for runs in (free, *(part for _, _, granted, trained in held for part in (granted, trained))):
            for start, count in runs:
                positions = set(range(start, start + count))
                if positions & seen or start + count > cursor:
                    raise Broken(f"positions {start} to {start + count} are granted twice, or not at all")
                seen |= positions

    async def _check_replicas(self, hub: Hub) -> None:
        by_step: dict[int, int] = {}
        step, fingerprint = await hub.swarm.own_fingerprint()
        by_step[step] = fingerprint
        for volunteer in self.volunteers.values():
            work = volunteer.node.work if volunteer.node and volunteer.running else None
            replica = work.replica if work else None
            if replica is not None:
                equal = by_step.setdefault(replica.step, replica.fingerprint(0))
                if replica.fingerprint(0) != equal:
                    raise Broken(f"{volunteer.name}: its replica differs at step {replica.step}")
