"""What a node holds while it takes part: replica, trainer and momentum, and the one thread that touches them.

Every job runs whole on that thread, so an update is applied between two micro-batches and never within one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from thinwire_node.link import SealedUpdate
from thinwire_node.state import Head, KeptMomentum, NodeState, Pending
from thinwire_node.trainer import Trainer
from thinwire_proto.codec import encode_votes
from thinwire_proto.contract import Contract
from thinwire_proto.corpus import Corpus
from thinwire_proto.errors import ReplicaError
from thinwire_proto.replica import Replica
from thinwire_proto.rows import contribution_hash
from thinwire_proto.service_pb2 import Announcement

Result = TypeVar("Result")


@dataclass(frozen=True)
class Contribution:
    """A finished cut: what it is computed on, and the payload."""

    step: int
    fingerprint: int
    samples: int
    dropped: int
    loss: float
    payload: bytes


class Work:
    def __init__(
        self, contract: Contract, state: NodeState, compute_device: torch.device, apply_device: torch.device
    ) -> None:
        self.contract = contract
        self._state = state
        self._compute_device = compute_device
        self._apply_device = apply_device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._moved = asyncio.Condition()
        self._trainer: Trainer | None = None
        self.replica: Replica | None = None
        self.pending: Pending | None = None
        self._resumed = False
        self._told_s = 0.0
        self.trained_to = 0
        """The first position of the samples that this node has not trained on; leases ascend."""

    @property
    def trainer(self) -> Trainer:
        assert self._trainer is not None
        return self._trainer

    def run(self, job: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        """Queue a job for the compute thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, job, *arguments)

    def close(self) -> None:
        """Wait for the job that runs, drop those that are queued."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def adopt(self, replica: Replica, corpus: Corpus) -> None:
        """Train on this replica from now on; momentum and gradient of before stay."""
        self.replica = replica = replica.clone(self._apply_device)
        if self._trainer is None:
            self._trainer = await self.run(Trainer, self.contract, corpus, replica, self._compute_device)
        else:
            await self.run(self._trainer.adopt, replica)

    async def apply(self, sealed: SealedUpdate) -> None:
        """Check an update's row against the replica, and step. Raises ReplicaError; the replica is then untouched."""
        await self.run(self._apply, sealed)
        async with self._moved:
            self._moved.notify_all()

    def _apply(self, sealed: SealedUpdate) -> None:
        replica, row = self.replica, sealed.row
        assert replica is not None
        if row.step != replica.step or row.previous != replica.head:
            raise ReplicaError(f"the row of step {row.step} does not follow the row that led to step {replica.step}")
        if replica.fingerprint(row.nonce) != row.fingerprint:
            raise ReplicaError(f"the parameters differ from those that were sealed at step {row.step}")
        replica.apply(sealed.update, row.hash)
        self.trainer.refresh()
        self._state.save_head(Head(replica.step, replica.head))

    async def train(self, positions: range) -> None:
        """One micro-batch."""
        self.trained_to = positions.stop
        await self.run(self.trainer.micro_batch, positions)

    def compute_ms(self) -> int:
        """Spent on forward and backward since this was last asked."""
        told, self._told_s = self._told_s, self.trainer.compute_s
        return round((self._told_s - told) * 1000)

    async def reached(self, step: int) -> None:
        """Wait until the replica is at `step` or beyond."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.replica is not None and self.replica.step >= step)

    async def contribution(self, announcement: Announcement) -> Contribution | None:
        """Cut, and encode. None if the replica has left the round's step behind: the gradient then waits for the next
        cut. What was cut is `pending` from then on, until `settle`."""
        return await self.run(self._contribution, announcement)

    def _contribution(self, announcement: Announcement) -> Contribution | None:
        replica = self.replica
        assert replica is not None
        if replica.step != announcement.step:
            return None
        dropped = self.trainer.dropped
        sent, samples, loss = self.trainer.cut(announcement.k)
        payload = encode_votes(sent.votes())
        name = contribution_hash(
            self.contract.hash, announcement.epoch, announcement.round, self._state.node_id, payload
        )
        self.pending = Pending(name, sent)
        return Contribution(replica.step, replica.fingerprint(announcement.nonce), samples, dropped, loss, payload)

    async def settle(self, counted: bool) -> None:
        """The receipt is in: counted votes stay out of the momentum, others go back into it."""
        await self.run(self._settle, counted)

    def _settle(self, counted: bool) -> None:
        if self.pending is not None and not counted:
            self.trainer.demo.put_back(self.pending.sent)
        self.pending = None

    def interrupt(self) -> None:
        """We are about to leave: give up the micro-batch that runs."""
        if self._trainer is not None:
            self._trainer.interrupt()

    async def finish_jobs(self) -> None:
        """Wait for whatever the thread has begun: cancelling a wait does not cancel the work."""
        await self.run(lambda: None)

    async def save_replica(self) -> None:
        """Keep the parameters, so that a restart needs no snapshot."""
        if self.replica is not None:
            await self.run(self._state.save_replica, self.replica)

    async def save_momentum(self) -> None:
        """Keep the momentum, and what is out of it; only for a node that leaves in good order."""
        await self.run(self._save_momentum)

    def _save_momentum(self) -> None:
        if self._resumed and self._trainer is not None:  # else what is on disk is the newest there is
            self._state.save_momentum(
                KeptMomentum(self._trainer.demo.momentum, self._trainer.replica.step, self.pending)
            )

    async def resume_momentum(self) -> int | None:
        """Take up the momentum of the last good leave, if there is one; returns the step that it was kept at."""
        return await self.run(self._resume_momentum)

    def _resume_momentum(self) -> int | None:
        momentum = self.trainer.demo.momentum
        kept = self._state.take_momentum(momentum.numel())
        self._resumed = True
        if kept is None:
            return None
        momentum.copy_(kept.momentum)
        self.pending = kept.pending
        return kept.step
