"""A simulated `thinwire_node.machine.Machine` with a given speed and a clock that drifts and jumps. It can be killed at
any moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from simulator.network import Network
from simulator.replicas import SharedReplica, SharedReplicas
from simulator.stub import Calls
from simulator.synthetic import ENCODE_S, REPLAY_S, MemoryState, SyntheticTrainer, VirtualThread
from thinwire_node.exchange.port import Surroundings
from thinwire_node.kinds import PartSettings
from thinwire_node.part import Part
from thinwire_node.runtime import Clocks
from thinwire_node.star.exchange import Star
from thinwire_node.star.part import StarPart
from thinwire_node.star.work import Work
from thinwire_node.storage.state import KeptMomentum, NodeState
from thinwire_node.training.threads import NodeJob, Threads
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import DataSource
from thinwire_proto.wire.service_pb2 import ContributionHeader


class DriftingClock:
    """A clock that runs slightly too fast or too slow and starts at an arbitrary time, in seconds."""

    def __init__(self, begin: float, drift: float) -> None:
        self._begin = begin
        self._drift = drift
        self._jumped = 0.0
        self.slept_s = 0.0

    def now(self) -> float:
        return self._begin + asyncio.get_running_loop().time() * (1 + self._drift) + self._jumped

    def asleep_s(self) -> float:
        return self.slept_s

    def jump(self, seconds: float) -> None:
        self._jumped += seconds

    def sleep(self, seconds: float) -> None:
        """Suspend the machine. This clock stops meanwhile; `asleep_s` reports the time."""
        self._jumped -= seconds
        self.slept_s += seconds


@dataclass(frozen=True)
class Hardware:
    """The speed of a machine.

    samples_s: samples trained per second. encode_s: time of an extraction. replay_s: time to apply one update.
    compute_share: of the time that its owner lends."""

    samples_s: float = 8.0
    micro_batch: int = 8
    encode_s: float = ENCODE_S
    replay_s: float = REPLAY_S
    compute_share: float = 1.0


class SimulatedMachine:
    """A simulated machine during one life of the node's process."""

    device = "synthetic"
    apply_device = torch.device("cpu")

    def __init__(
        self,
        name: str,
        hardware: Hardware,
        clock: DriftingClock,
        state: MemoryState,
        network: Network,
        service: Callable[[str], Any | None],
        shared: SharedReplicas,
        randomness: random.Random,
        on_upload: Callable[[], None],
    ) -> None:
        self._name = name
        self._hardware = hardware
        self._state = state
        self._network = network
        self._service = service
        self._shared = shared
        self._random = randomness
        self._on_upload = on_upload
        self._threads: Threads | None = None
        self.clock = clock
        self.clocks = Clocks(clock.now, clock.asleep_s)
        self.trainer: SyntheticTrainer | None = None
        self.slow_until = 0.0

    def open_state(self) -> NodeState:
        return self._state

    def kind(self, name: str) -> type[Part]:
        machine = self

        class SimulatedStar(SimulatedPart):
            def __init__(self, settings: PartSettings) -> None:
                super().__init__(settings, machine)

            @staticmethod
            async def open_exchange(surroundings: Surroundings) -> Star:
                return machine.open_exchange(surroundings)

        return SimulatedStar

    def open_exchange(self, surroundings: Surroundings) -> Star:
        def service() -> Any | None:
            return self._service(surroundings.address)

        connection = self._network.connect(self._name)

        async def close() -> None:
            connection.die("closed by the node")

        def upload(header: ContributionHeader) -> bool:
            self._on_upload()
            header.round += self._network.rounds_ahead.get(self._name, 0)
            return self._name not in self._network.uploads_fail

        calls = Calls(connection, service, upload)
        return Star(calls, close, self.clocks, heard_of_standby=surroundings.heard_of_standby)

    def make_work(self, contract: Contract, replica: Replica, kept: KeptMomentum | None) -> Work:
        self.trainer = SyntheticTrainer(self.place(replica), self._random)
        journal = VirtualThread(lambda job, arguments: 0.0)
        self._threads = Threads(VirtualThread(self._cost_s), VirtualThread(lambda job, arguments: 0.05), journal)
        return Work(contract, self._state, self.trainer, self._threads, self.clocks.now, kept)

    def threads(self) -> NoReturn:
        raise AssertionError("a part with real threads; tests/support/member_world.py simulates gossip")

    async def choose_apply_device(self, contract: Contract, threads: Threads) -> NoReturn:
        self.threads()

    async def make_compute(self, *arguments: object) -> NoReturn:
        self.threads()

    def place(self, replica: Replica) -> Replica:
        return replica if isinstance(replica, SharedReplica) else SharedReplica(self._shared, replica)

    def _cost_s(self, job: NodeJob, arguments: tuple[Any, ...]) -> float:
        stalled_s = max(0.0, self.slow_until - asyncio.get_running_loop().time())
        if job is NodeJob.MICRO_BATCH:
            seconds = len(arguments[0]) / self._hardware.samples_s
            if self.trainer is not None:
                self.trainer.compute_s += seconds
            return stalled_s + seconds
        if job is NodeJob.EVALUATE:
            return stalled_s + len(arguments[2]) / self._hardware.samples_s
        if job is NodeJob.EXTRACT:
            return stalled_s + self._hardware.encode_s
        if job is NodeJob.APPLY:
            return stalled_s + self._hardware.replay_s
        return stalled_s

    def kill(self) -> None:
        """Act as kill -9: no job that is running here has any effect."""
        self._state.frozen = True
        if self._threads is not None:
            for thread in (self._threads.compute, self._threads.saver, self._threads.journal):
                if isinstance(thread, VirtualThread):
                    thread.dead = True
        connection = self._network.connections.get(self._name)
        if connection is not None and self._name not in self._network.blocked:
            connection.die("the node's process is gone")


class SimulatedPart(StarPart):
    """A part whose trainer makes up its votes, on threads of virtual time."""

    def __init__(self, settings: PartSettings, machine: SimulatedMachine) -> None:
        super().__init__(settings)
        self._simulated = machine

    async def _make_work(self, data: DataSource, replica: Replica, kept: KeptMomentum | None) -> Work:
        return self._simulated.make_work(self._settings.contract, replica, kept)
