"""The machine that a node runs on: its clock, disk, link and threads.

The simulator provides another `Machine`. All code above this module is the same in both."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

import torch

from thinwire_common.logs import tell
from thinwire_common.reach.hosts import split_address
from thinwire_common.traffic import Traffic
from thinwire_node.compression.fused import end_trials
from thinwire_node.exchange.kinds import AnyExchange, Surroundings, open_exchange
from thinwire_node.exchange.peers.direct_lines import open_direct_lines
from thinwire_node.exchange.peers.lines import PeerLines
from thinwire_node.options import NodeOptions
from thinwire_node.runtime import Clocks, SystemClock
from thinwire_node.session.gossip.opening import open_training
from thinwire_node.session.gossip.training import GossipTraining
from thinwire_node.session.record import Record
from thinwire_node.storage.blob_cache import CACHE_BYTES
from thinwire_node.storage.gossip_journal import GossipJournal, JournalEntry
from thinwire_node.storage.state import KeptMomentum, NodeState
from thinwire_node.training.cards import card_locks
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.device import choose_apply_device, choose_device
from thinwire_node.training.threads import NodeJob, Threads, WorkerThread
from thinwire_node.training.trainer import Trainer
from thinwire_node.training.work import Work
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.gossip.peer_wire import body_bytes_max
from thinwire_proto.identity.invite import Invite
from thinwire_proto.task import DataSource, task_of

log = logging.getLogger("thinwire.node")


class Machine(Protocol):
    """The clocks, state, link and compute of one machine."""

    clocks: Clocks
    device: str

    def open_state(self) -> NodeState:
        """Open the state directory. Raises ConfigError."""

    def connect(self, kind: str, traffic: Traffic, *, thin_line: bool = False) -> AnyExchange:
        """Open an exchange of this kind; see `Surroundings`. Raises ConfigError."""

    async def make_work(
        self, contract: Contract, state: NodeState, data: DataSource, replica: Replica, kept: KeptMomentum | None
    ) -> Work:
        """Load the model onto the device. Raises ConfigError if this machine cannot compute exactly."""

    async def make_training(
        self,
        contract: Contract,
        state: NodeState,
        data: DataSource,
        first: Replica,
        kept: JournalEntry | None,
        record: Record,
        options: NodeOptions,
    ) -> GossipTraining:
        """Load the model onto the device, for a swarm without a centre: see `open_training`."""

    def place(self, replica: Replica) -> Replica:
        """Move a replica to the device that applies updates. One that is there already is not copied."""


class RealMachine:
    """The machine that this process runs on.

    device: as the volunteer named it. cache_bytes: see `NodeState`. invite: see `Surroundings`. Raises ConfigError if
    the device cannot be used."""

    def __init__(
        self,
        address: str,
        state_dir: Path,
        device: str,
        cache_bytes: int = CACHE_BYTES,
        invite: Invite | None = None,
    ) -> None:
        self._address = address
        self._invite = invite
        self._state_dir = state_dir
        self._cache_bytes = cache_bytes
        self._cards = card_locks()  # held until this process ends
        self._compute_device, why = choose_device(device, self._cards)
        self._apply_device = torch.device("cpu")
        if why:
            log.warning("%s", why)
        clock = SystemClock()
        self.clocks = Clocks(clock.now, clock.asleep_s)
        self.device = str(self._compute_device)

    def open_state(self) -> NodeState:
        return NodeState(self._state_dir, self._cache_bytes)

    def connect(self, kind: str, traffic: Traffic, *, thin_line: bool = False) -> AnyExchange:
        return open_exchange(kind, Surroundings(self._address, self.clocks, traffic, self._invite, thin_line))

    async def make_work(
        self, contract: Contract, state: NodeState, data: DataSource, replica: Replica, kept: KeptMomentum | None
    ) -> Work:
        threads = Threads(WorkerThread("compute"), WorkerThread("saver"), WorkerThread("journal"))
        self._apply_device, why = await threads.compute.run(
            NodeJob.PREPARE, choose_apply_device, contract.demo, self._compute_device
        )
        log.info("%s", why)
        self._tell_training()
        placed = self.place(replica)
        task = task_of(contract.model)
        compute = await threads.compute.run(NodeJob.PREPARE, TorchCompute, task, self._compute_device, state.blobs)
        try:
            trainer = await threads.compute.run(NodeJob.PREPARE, Trainer, contract, data, placed, compute)
        except asyncio.CancelledError:
            end_trials()
            raise
        await asyncio.sleep(0)
        return Work(contract, state, trainer, threads, self.clocks.now, kept)

    async def make_training(
        self,
        contract: Contract,
        state: NodeState,
        data: DataSource,
        first: Replica,
        kept: JournalEntry | None,
        record: Record,
        options: NodeOptions,
    ) -> GossipTraining:
        threads = Threads(WorkerThread("compute"), WorkerThread("saver"), WorkerThread("journal"))
        self._tell_training()
        exchange, layout = contract.exchange, layout_of(contract.parameters)
        assert isinstance(exchange, GossipSpec)
        bytes_max = body_bytes_max(layout, exchange.codec, is_controlled=exchange.is_controlled)
        task = task_of(contract.model)
        compute = await threads.compute.run(NodeJob.PREPARE, TorchCompute, task, self._compute_device, state.blobs)
        coordinator, _ = split_address(self._address)
        direct = await open_direct_lines(options, coordinator, state.key, contract.hash, contract.round.nodes_max)
        return open_training(
            contract,
            first,
            kept,
            data,
            compute,
            GossipJournal(state, contract.hash),
            threads,
            lambda listener: PeerLines(state.key, contract.hash, bytes_max, listener, direct, record.traffic),
            record,
            options,
            self.clocks,
        )

    def _tell_training(self) -> None:
        device, count = str(self._compute_device), torch.get_num_threads()
        text = f"training on {device} with {count} threads"
        tell(log, logging.INFO, "node.training", text, device=device, threads=count)

    def place(self, replica: Replica) -> Replica:
        return replica if replica.device == self._apply_device else replica.clone(self._apply_device)
