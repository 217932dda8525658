"""The machine that a node runs on: its clock, disk, link and threads.

The simulator provides another `Machine`. All code above this module is the same in both."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

import torch

from thinwire_common.units import human_seconds
from thinwire_node.kinds import KINDS
from thinwire_node.part import Part
from thinwire_node.runtime import Clocks
from thinwire_node.session.record import Record
from thinwire_node.storage.blob_cache import CACHE_BYTES
from thinwire_node.storage.state import NodeState
from thinwire_node.training.cards import card_locks
from thinwire_node.training.compute import Compute, TorchCompute, set_up_compiler
from thinwire_node.training.device import choose_apply_device, choose_device, unseen_card
from thinwire_node.training.threads import NodeJob, Threads, WorkerThread
from thinwire_proto.activations import sample_of
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import task_of

log = logging.getLogger("thinwire.node")

COMPILER_NEEDED = "--compile needs a C++ compiler, such as g++ or clang"


class RealMachine:
    """The machine that this process runs on.

    device: as the volunteer named it. cache_bytes: see `NodeState`. compiles: whether models are compiled. Raises
    ConfigError if the device cannot be used."""

    def __init__(self, state_dir: Path, device: str, cache_bytes: int = CACHE_BYTES, *, compiles: bool = False) -> None:
        self._compiles = compiles
        self._state_dir = state_dir
        self._cache_bytes = cache_bytes
        self._cards = card_locks()  # held until this process ends
        self._compute_device, why = choose_device(device, self._cards)
        self.apply_device = torch.device("cpu")
        if device == "auto" and self._compute_device.type == "cpu" and (card := unseen_card()) is not None:
            why = f"{why}; {card}" if why else str(card)
        if why:
            log.warning("%s", why)
        self.clocks = Clocks()
        self.device = str(self._compute_device)

    def open_state(self) -> NodeState:
        return NodeState(self._state_dir, self._cache_bytes)

    def kind(self, name: str) -> type[Part]:
        return KINDS[name]

    def threads(self) -> Threads:
        return Threads(WorkerThread("compute"), WorkerThread("saver"), WorkerThread("journal"))

    async def choose_apply_device(self, contract: Contract, threads: Threads) -> None:
        self.apply_device, why = await threads.compute.run(
            NodeJob.PREPARE, choose_apply_device, contract.demo, self._compute_device, contract.rule
        )
        log.info("%s", why)

    async def make_compute(self, contract: Contract, state: NodeState, threads: Threads, record: Record) -> Compute:
        log.info("training on %s with %d threads", self._compute_device, torch.get_num_threads())
        task, device = task_of(contract.model), self._compute_device
        if record.base_bits is not None:
            task = task.in_bits(record.base_bits)
        make = partial(TorchCompute, task, device, state.blobs, record.at_once, compiles=self._compiles)
        compute: TorchCompute = await threads.compute.run(NodeJob.PREPARE, make)
        if self._compiles:
            await self._compile(compute, contract, threads)
        return compute

    async def _compile(self, compute: TorchCompute, contract: Contract, threads: Threads) -> None:
        log.info("compiling the model: up to a few minutes, the first time")
        began = time.monotonic()
        set_up_compiler(self._state_dir)
        parameters = {one.name: torch.zeros(one.shape, device=compute.device) for one in contract.parameters}
        reason = await threads.compute.run(NodeJob.PREPARE, compute.compile, parameters, sample_of(contract.model))
        if reason is None:
            log.info("%s", f"the model is compiled, after {human_seconds(time.monotonic() - began)}")
        else:
            log.warning(
                "%s", f"this machine cannot compile the model, and trains without ({reason}); {COMPILER_NEEDED}"
            )

    def place(self, replica: Replica) -> Replica:
        return replica if replica.device == self.apply_device else replica.clone(self.apply_device)
