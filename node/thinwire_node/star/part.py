"""A node's part in a star run: its work, its momentum on disk, and its sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from thinwire.compression.fused import end_trials
from thinwire_common.logs import tell
from thinwire_node.exchange.port import Exchange, MomentumClaim, Surroundings
from thinwire_node.kinds import KINDS, PartSettings
from thinwire_node.part import Part
from thinwire_node.peer_settings import PeerSettings
from thinwire_node.report import PartView
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.star.exchange import Star
from thinwire_node.star.rules import shapes_kept
from thinwire_node.star.session import Session
from thinwire_node.star.site.leader import LeaderReplica, LeaderTrainer, ShardedLeaderReplica
from thinwire_node.star.site.messages import Base
from thinwire_node.star.site.sharded_compute import ShardedCompute
from thinwire_node.star.site.shares import Shares
from thinwire_node.star.trainer import Trainer
from thinwire_node.star.work import Computes, Work
from thinwire_node.storage.state import REPLICA_FILE, KeptMomentum
from thinwire_node.training.compute import Compute
from thinwire_node.training.threads import NodeJob
from thinwire_proto.batch_pool import CPU
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.task import DataSource, task_of

log = logging.getLogger("thinwire.node")

NOTHING_TRAINED = MomentumClaim(None)
"""The claim of a node that has extracted nothing yet, such as one that only waited. To drop its momentum is no loss."""


@KINDS.register("star")
class StarPart(Part):
    _settings: PartSettings
    work: Work | None = None

    def __init__(self, settings: PartSettings) -> None:
        super().__init__(settings)
        self._session: Session | None = None
        self._kept = self._momentum_on_disk()  # not adopted yet

    @staticmethod
    async def open_exchange(surroundings: Surroundings) -> Star:
        return await Star.open(surroundings)

    @staticmethod
    def undivided(contract: Contract) -> str:
        if task_of(contract.model).blobs():
            return "this run's model has a frozen base"
        rule = contract.rule
        return f'rule.kind = "{rule.kind}" {rule.NEEDS_WHOLE}' if rule.NEEDS_WHOLE else ""

    @staticmethod
    def parameters(folder: Path, contract: Contract) -> Mapping[str, Tensor]:
        return load_replica(contract, folder / REPLICA_FILE).tensors

    def _momentum_on_disk(self) -> KeptMomentum | None:
        state, ranks = self._settings.state, self._settings.ranks
        kept = state.momentum(shapes_kept(self._settings.contract), is_mapped=ranks is not None)
        if kept is None or state.sent() is not None:
            return kept
        why = "sent.json is lost or damaged, so contributions that are in this momentum may be in an update already"
        tell(log, logging.WARNING, "node.momentum_dropped", f"the momentum is dropped: {why}", reason=why)
        state.drop_momentum()
        return None

    @property
    def replica(self) -> Replica | None:  # type: ignore[override]
        return self.work.replica if self.work is not None else None

    def claim(self) -> MomentumClaim | None:
        if self.work is not None:
            # the next contribution reports the samples in the gradient that is not extracted yet
            return MomentumClaim(self.work.trained_through_at_extraction)
        sent = self._settings.state.sent()
        if self._kept is None or sent is None:  # `_momentum_on_disk` keeps neither without the other
            return None
        return MomentumClaim(self._kept.trained_through, tuple(sent))

    async def drop_momentum(self, why: str) -> None:
        if self.claim() != NOTHING_TRAINED:
            tell(log, logging.WARNING, "node.momentum_dropped", f"dropped the momentum: {why}", reason=why)
        self._kept = None
        if self.work is not None:
            await self.work.forget()
        else:
            self._settings.state.drop_momentum()

    async def take_up(self, data: DataSource, replica: Replica) -> None:
        if self.work is None:
            if self._settings.options.peers != PeerSettings():
                log.warning("--peers has no effect in this run: it is a star run, and nodes send each other nothing")
            self.work = await self._make_work(data, replica, self._kept)
            if self._kept is not None:
                tell(log, logging.INFO, "node.momentum_taken_up", "momentum taken up")
        elif replica is not self.work.replica:
            await self.work.adopt(self._placed(replica))
        self._kept = None

    async def _make_work(self, data: DataSource, replica: Replica, kept: KeptMomentum | None) -> Work:
        """Load the model onto the device. Raises ConfigError if this machine cannot compute exactly."""
        contract, state, machine = self._settings.contract, self._settings.state, self._settings.machine
        threads = machine.threads()
        await machine.choose_apply_device(contract, threads)
        if (ranks := self._settings.ranks) is not None:
            holds = "none holds the whole model" if ranks.is_sharded else "each holds the whole model"
            log.info("%s", f"this node is of {ranks.size} processes; {holds}, and they divide the rest")
        placed = self._placed(replica)
        record = self._settings.record
        if isinstance(placed, ShardedLeaderReplica):
            task, device = task_of(contract.model), torch.device(machine.device)
            compute: Compute = await threads.compute.run(
                NodeJob.PREPARE, ShardedCompute, task, device, placed.shares, record.at_once
            )
        else:
            compute = await machine.make_compute(contract, state, threads, record)
        moments_on, base = CPU if record.moments_on_host else None, Base(record.base_bits, state.blobs.folder)
        make: Callable[..., Computes] = partial(Trainer, moments_on=moments_on)
        if ranks is not None:
            make = partial(LeaderTrainer, folder=state.path(""), base=base)
        try:
            trainer = await threads.compute.run(NodeJob.PREPARE, make, contract, data, placed, compute)
        except asyncio.CancelledError:
            end_trials()
            raise
        await asyncio.sleep(0)
        return Work(contract, state, trainer, threads, machine.clocks.now, kept, self._settings.take_contract)

    def _placed(self, replica: Replica) -> Replica:
        machine, ranks = self._settings.machine, self._settings.ranks
        if ranks is None:
            return machine.place(replica)
        shares = Shares(replica.layout, ranks, replica.contract.rule)
        if ranks.is_sharded:
            return ShardedLeaderReplica(replica, shares, machine.apply_device)
        return LeaderReplica(machine.place(replica), shares)

    def session(self, exchange: Exchange, head_step: int, data: DataSource, fetcher: BlobFetcher) -> Session:
        assert self.work is not None
        settings = self._settings
        clocks = settings.machine.clocks
        self._session = Session(
            exchange, self.work, settings.record, settings.options, clocks, head_step, data, fetcher
        )
        return self._session

    def drop_replica(self) -> None:
        if self.work is not None:
            self.work.replica = None

    def interrupt(self) -> None:
        if self.work is not None:
            self.work.interrupt()

    async def rest(self) -> None:
        if self.work is not None:
            await self.work.rest()

    async def stop(self) -> None:
        if (work := self.work) is None:
            return
        await work.save()
        if (replica := work.replica) is not None:
            step, fingerprint = replica.step, f"{await work.run(NodeJob.DRAIN, replica.model_fingerprint):016x}"
            text = f"left at step {step}, fingerprint {fingerprint}"
            tell(log, logging.INFO, "node.left", text, step=step, fingerprint=fingerprint)

    def done_in_words(self) -> str:
        record = self._settings.record
        return f"counted {record.counted} times, not counted {record.not_counted} times"

    def view(self) -> PartView:
        step = self.replica.step if self.replica is not None else None
        session = self._session
        view = session.view(step) if session is not None and session.is_open else PartView("", step=step)
        trainer = self.work.trainer if self.work is not None else None
        return replace(view, ranks=trainer.ranks) if isinstance(trainer, LeaderTrainer) else view
