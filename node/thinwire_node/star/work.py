"""The state of a node that takes part: replica, trainer, momentum and the compute thread that owns them.

Jobs run on the compute thread one at a time, so an update is applied between micro-batches and never within one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from torch import Tensor

from thinwire.compression.residual import Awaited, Pending
from thinwire.compression.sent import Sent
from thinwire_node.exchange.port import AnnouncedRound, Claim, SealedUpdate
from thinwire_node.part import ParametersDiffer, PartWork, WentBack
from thinwire_node.star.saver import Passing, Saver
from thinwire_node.storage.state import Head, KeptMomentum, NodeState
from thinwire_node.training.failures import Interrupted
from thinwire_node.training.lease import Lease
from thinwire_node.training.threads import NodeJob, Threads
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.amendments import contract_at, rewind_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.out_of_memory import TooLittleMemory, retry_out_of_memory
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.rows import contribution_hash

Result = TypeVar("Result")


class Learned(Protocol):
    """The part of `thinwire_node.star.rules.Rule` that outlives a micro-batch."""

    def put_back(self, sent: Sent) -> None: ...
    def forget(self) -> None: ...
    def state(self) -> dict[str, Tensor]: ...
    def load(self, state: Mapping[str, Tensor]) -> None: ...


class Computes(Protocol):
    """The interface of `thinwire_node.star.trainer.Trainer`, which a node of several ranks has too: see
    `thinwire_node.star.site`. The simulator's trainer makes up its votes."""

    @property
    def replica(self) -> Replica: ...
    @property
    def rule(self) -> Learned: ...

    samples: int
    dropped: int
    base_step: int | None
    compute_s: float

    def adopt(self, replica: Replica) -> None: ...
    def amend(self, contract: Contract) -> None: ...
    def refresh(self, out: Sequence[Sent] = ()) -> None: ...
    def micro_batch(self, positions: Sequence[int]) -> None: ...
    def held_out_loss(self, tensors: Mapping[str, Tensor], name: str, samples: Sequence[int]) -> float: ...
    def extract(self, k: int) -> tuple[Sent, int, float]: ...
    def clear(self) -> None: ...
    def interrupt(self) -> None: ...
    def resume(self) -> None: ...


@dataclass(frozen=True)
class Extraction:
    """An extracted contribution, ready to publish."""

    name: bytes
    claim: Claim
    payload: bytes
    components: int


class Work(PartWork):
    """kept: the momentum of an earlier process, if this one may continue with it. now: seconds on a monotonic clock."""

    def __init__(
        self,
        contract: Contract,
        state: NodeState,
        trainer: Computes,
        threads: Threads,
        now: Callable[[], float],
        kept: KeptMomentum | None,
        take_contract: Callable[[Contract], None] = lambda contract: None,
    ) -> None:
        super().__init__(contract, threads, Lease(), take_contract)
        self.trainer = trainer
        self.replica: Replica | None = trainer.replica
        """The node's parameters. None from a resync until they are fetched again."""
        self.pending: Pending | None = None
        """The contribution without an outcome."""
        self._on_the_way: list[Pending] = []  # contributions that no update has held yet, and that are not put back
        self._awaited = Awaited(contract.demo.update_topk, kept.awaited if kept else ())
        self._state = state
        self._now = now
        self._moved = asyncio.Condition()
        self._trained_through_at_extraction: int | None = None
        self._fingerprinted = (-1, 0, 0)  # step, nonce, fingerprint
        self._reported_s = 0.0
        self.apply_s = 0.0
        """Seconds that the newest update took on the compute thread."""
        self.saved_s = 0.0
        """Seconds for which saves have held up a catch-up."""
        self._keep_step: int | None = None
        self._kept: tuple[int, Mapping[str, Tensor]] | None = None  # parameters of a step that the replica has left
        self._saver = Saver(state, threads, now, contract.round.length_s)
        if kept is not None:
            trainer.rule.load(kept.momentum)
            self.pending = kept.pending
            self._on_the_way = [kept.pending] if kept.pending else []
            self.lease.trained_through = self._trained_through_at_extraction = kept.trained_through

    async def adopt(self, replica: Replica) -> None:
        """Train on this replica from now on. Keeps the momentum and drops the gradient on the previous replica."""
        self.replica = replica
        await self.run(NodeJob.ADOPT, self._adopt, replica)

    def _adopt(self, replica: Replica) -> None:
        self.trainer.clear()
        self.trainer.adopt(replica)
        self._kept = None  # the replica before may have differed from the swarm's
        self._fingerprinted = (-1, 0, 0)

    def _amended(self, contract: Contract) -> None:
        self.trainer.amend(contract)
        self._awaited.update_topk = contract.demo.update_topk

    # updates

    async def apply(self, sealed: SealedUpdate) -> None:
        """Check an update's row against the replica and apply it. Raises ReplicaError and then changes nothing."""
        await self.run(NodeJob.APPLY, self._apply, sealed)
        self._saver.note_head()
        async with self._moved:
            self._moved.notify_all()

    def _apply(self, sealed: SealedUpdate) -> None:
        replica, row, began = self.replica, sealed.row, self._now()
        assert replica is not None
        if row.step != replica.step or row.previous != replica.head:
            raise ReplicaError(f"the row of step {row.step} does not follow the row that led to step {replica.step}")
        if (earlier := rewind_of(row.extras)) is not None:
            raise WentBack(f"the organizer went back from step {row.step} to step {earlier}")
        if self._fingerprint(replica, row.nonce) != row.fingerprint:
            raise ParametersDiffer(f"the parameters differ from those sealed at step {row.step}")
        if self._keep_step == replica.step:
            self._kept = replica.step, retry_out_of_memory(replica.copied)
        try:
            retry_out_of_memory(partial(replica.apply, sealed.update, row.hash))
        except TooLittleMemory:
            self.replica = None  # a part of it may be at the next step, and must not be saved
            raise
        self._awaited.update_topk = contract_at(self.contract, row.step).demo.update_topk
        for part in self._awaited.applied(row.step, row.contributions, sealed.update.merged, replica.layout):
            self.trainer.rule.put_back(part)
        self._on_the_way = [one for one in self._on_the_way if one.hash not in row.contributions]
        self._awaited.update_topk = self.contract.demo.update_topk
        retry_out_of_memory(self._stand_on_newest)
        self._state.advance(Head(replica.step, replica.head))
        self.apply_s = self._now() - began

    def _fingerprint(self, replica: Replica, nonce: int) -> int:
        """The replica's fingerprint. Usually a contribution and the row of its step need the same one, so it is cached.
        The next contribution detects a replica that was damaged in between."""
        step, known_nonce, fingerprint = self._fingerprinted
        if (step, known_nonce) != (replica.step, nonce):
            fingerprint = retry_out_of_memory(partial(replica.fingerprint, nonce))
            self._fingerprinted = (replica.step, nonce, fingerprint)
        return fingerprint

    @property
    def _looks_ahead(self) -> bool:
        return self.contract.round.base_age_max > 0

    def _stand_on_newest(self) -> None:
        """Train on the replica, or ahead of it if contributions are on the way: those that its updates cannot hold, and
        the one without an outcome."""
        step, pending = self.trainer.replica.step, self.pending
        self._on_the_way = [one for one in self._on_the_way if one.step >= step or one is pending]
        self.trainer.refresh([one.sent for one in self._on_the_way] if self._looks_ahead else ())

    async def reached(self, step: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.replica is not None and self.replica.step >= step)

    # contributions

    async def train(self, samples: int) -> int:
        """Train one micro-batch of up to `samples` samples of the lease. Returns their number. Raises Interrupted; the
        samples then count as not trained, unless a process of the node has trained its share of them: that one is in
        the gradient, and no sample may be trained twice."""
        trained_through, before = self.lease.trained_through, self.trainer.samples
        positions = self.lease.take(samples)
        try:
            await self.run(NodeJob.MICRO_BATCH, self.trainer.micro_batch, positions)
        except Interrupted:
            if self.trainer.samples == before:
                self.lease.trained_through = trained_through
            raise
        return len(positions)

    # held-out losses

    def keep(self, step: int | None) -> None:
        """Keep a copy of this step's parameters when an update replaces them. None: keep none."""
        self._keep_step = step
        if self._kept is not None and self._kept[0] != step:
            self._kept = None

    def holds(self, step: int) -> bool:
        return step in (self.replica.step if self.replica else None, self._kept[0] if self._kept else None)

    async def held_out_loss(self, step: int, name: str, samples: Sequence[int]) -> float | None:
        """The mean loss of the parameters of a step on held-out samples; None if these parameters are gone. Raises
        Interrupted, BlobMissing."""
        return await self.run(NodeJob.EVALUATE, self._held_out_loss, step, name, samples)

    def _held_out_loss(self, step: int, name: str, samples: Sequence[int]) -> float | None:
        replica, kept = self.replica, self._kept
        if replica is not None and replica.step == step:
            return self.trainer.held_out_loss(replica.tensors, name, samples)
        return self.trainer.held_out_loss(kept[1], name, samples) if kept is not None and kept[0] == step else None

    async def drop_gradient(self) -> None:
        await self.run(NodeJob.DROP_GRADIENT, self.trainer.clear)

    async def contribution(self, round_: AnnouncedRound, k: int) -> Extraction | None:
        """Extract `k` components a tile, and encode. None if the replica has left the round's step behind: the gradient
        then waits for the next extraction. The extracted part is `pending` from then on, until `settle`; its name is on
        disk before this returns."""
        contribution = await self.run(NodeJob.EXTRACT, self._extract, round_, k, self.lease.trained_through)
        if contribution is None:
            return None
        await self._saver.note_sent(contribution.name)
        if self._saver.is_due:
            self._saver.begin(self._write)
        return contribution

    def _extract(self, round_: AnnouncedRound, k: int, trained_through: int | None) -> Extraction | None:
        replica, trainer = self.replica, self.trainer
        assert replica is not None
        behind = round_.step - replica.step
        if not 0 <= behind < len(round_.nonces) or trainer.base_step is None:
            return None
        dropped, base_step = trainer.dropped, trainer.base_step
        sent, samples, loss = trainer.extract(k)
        payload = retry_out_of_memory(lambda: encode_votes(sent.votes(), replica.layout))
        name = contribution_hash(self.contract.hash, round_.term, round_.number, self._state.node_id, payload)
        self.pending = Pending(name, sent, round_.step, samples)
        self._on_the_way.append(self.pending)
        self._awaited.add(self.pending)
        self._trained_through_at_extraction = trained_through
        fingerprint = self._fingerprint(replica, round_.nonces[behind])
        if self._looks_ahead:
            retry_out_of_memory(self._stand_on_newest)
        claim = Claim(
            term=round_.term,
            round=round_.number,
            step=replica.step,
            base_step=base_step,
            trained_through=trained_through,
            dropped=dropped,
            samples=samples,
            fingerprint=fingerprint,
            loss=loss,
            compute_ms=self._compute_ms(),
            name=name,
        )
        return Extraction(name, claim, payload, retry_out_of_memory(partial(len, sent)))

    def _compute_ms(self) -> int:
        """Milliseconds spent on forward and backward passes since the last call."""
        reported_s, self._reported_s = self._reported_s, self.trainer.compute_s
        return round((self._reported_s - reported_s) * 1000)

    async def settle(self, counted: bool) -> None:
        """Handle the outcome. Counted votes stay out of the momentum; others are put back into it."""
        await self.run(NodeJob.SETTLE, self._settle, counted)
        async with self._moved:
            self._moved.notify_all()

    async def settled(self) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.pending is None)

    def _settle(self, counted: bool) -> None:
        if self.pending is not None and not counted:
            self.trainer.rule.put_back(self.pending.sent)
            if any(one is self.pending for one in self._on_the_way):
                self._on_the_way = [one for one in self._on_the_way if one is not self.pending]
                retry_out_of_memory(self._stand_on_newest)
        self.pending = None

    async def forget(self) -> None:
        """Drop the momentum and start again with a new lease."""
        await self.run(NodeJob.FORGET, self._forget)
        await self._saver.drop()

    def _forget(self) -> None:
        self.trainer.clear()
        self.trainer.rule.forget()
        self.trainer.refresh()
        self.pending = None
        self._on_the_way = []
        self._awaited.clear()
        self.lease = Lease()
        self._trained_through_at_extraction = None  # those samples are in no momentum any more
        self._saver.forget_sent()

    def interrupt(self) -> None:
        """Abort the running micro-batch, because the node is about to leave."""
        self.trainer.interrupt()

    async def rest(self) -> None:
        """Move the gradient into the momentum, and save it: when the node comes back, the gradient would be too old."""
        self.trainer.resume()
        await self.run(NodeJob.EXTRACT, self._keep, self.lease.trained_through)
        await self.save()

    def _keep(self, trained_through: int | None) -> None:
        if self.trainer.samples:
            sent, _, _ = self.trainer.extract(1)
            self.trainer.rule.put_back(sent)
            self._trained_through_at_extraction = trained_through

    async def finish_jobs(self) -> None:
        """Wait for the jobs that the threads have started. Cancelling a waiting task does not cancel its job."""
        await self.run(NodeJob.DRAIN, lambda: None)
        await self._saver.finish()

    # saving

    def _write(self) -> asyncio.Future[Passing]:
        return self.run(NodeJob.COPY, self._write_state)

    def _write_state(self) -> Passing:
        """Amid a resync the momentum is saved alone: it outlives the replica, on disk as in memory."""
        rule, mark = self.trainer.rule, self._trained_through_at_extraction
        momentum = KeptMomentum(rule.state(), mark, self.pending, self._awaited.kept())
        return self._saver.write(self.replica, momentum)

    async def save(self) -> None:
        """Save the momentum, and the replica if there is one, now, when the node leaves or catches up."""
        await self.run(NodeJob.DRAIN, lambda: None)  # a save that failed earlier must not keep the node from this one
        await self._saver.save(self._write)

    async def save_if_due(self) -> None:
        """Save during the catch-up, which waits meanwhile."""
        if self._saver.is_due:
            began = self._now()
            await self.save()
            self.saved_s += self._now() - began

    @property
    def trained_through_at_extraction(self) -> int | None:
        """The last sample position in the momentum. Later positions are only in the gradient, if anywhere."""
        return self._trained_through_at_extraction
