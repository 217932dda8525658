"""The work of a node that steps by itself: member, optimizer and gradient, and the compute thread that owns them.

An iteration: the gradient of samples of the lease; the member's decision to mix; mix, step, begin the next; journal.
Messages that come while the node computes are taken between two micro-batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from thinwire_node.gossip.gradient import Gradient, GradientSum
from thinwire_node.gossip.journal import GossipJournal, JournalEntry
from thinwire_node.gossip.rules import OwnSteps
from thinwire_node.part import PartWork
from thinwire_node.training.lease import Lease
from thinwire_node.training.threads import NodeJob, Threads
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.consensus import pack_sketch
from thinwire_proto.gossip.iteration import Mix
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.message import Message

Result = TypeVar("Result")
TakeContract = Callable[[Contract], None]
Sending = list[tuple[int, Message]]
"""Messages to send, each with its peer's member number."""


@dataclass(frozen=True)
class Saved:
    """The newest journal entry, in numbers. iteration: how many are finished. loss, step_norm: of the newest iteration;
    None before the first. samples: trained in all. confirmed: by peer, the last message that is in it."""

    topology: int
    iteration: int
    head: bytes
    trained_through: int | None
    samples: int
    confirmed: dict[int, int]
    loss: float | None = None
    step_norm: float = 0.0


@dataclass(frozen=True)
class MemberView:
    """iteration: that the node computes or waits for; -1 before the first. topology: the newest; 0 without one.
    may_begin: whether there is a topology, and parameters to begin with. deadline: when the node goes on without the
    peers that are missing; None while it computes. peers: those with an edge. awaited: those whose messages are missing
    in this iteration."""

    iteration: int
    topology: int
    may_begin: bool
    deadline: float | None
    peers: tuple[int, ...]
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sketched:
    """The packed sketch of the parameters with which an iteration begins, and the norm of the step before it."""

    iteration: int
    sketch: bytes
    step_norm: float


@dataclass(frozen=True)
class Finished:
    """An iteration that is mixed, stepped and in the journal. sending: the messages of the next one, which may leave.
    unreadable: peers whose messages could not be read, and why. sketched: if the next iteration is `measure_at`."""

    saved: Saved
    sending: Sending
    gradient: Gradient
    missing: tuple[int, ...]
    unreadable: dict[int, str]
    sketched: Sketched | None = None


class GossipWork(PartWork):
    """member, optimizer and gradient are of the compute thread. kept: the journal's entry that they continue from.
    pulled: where gradients are computed, if that is not x (see `exchange.gradient_pull`)."""

    unit = "iteration"

    def __init__(
        self,
        contract: Contract,
        layout: TileLayout,
        member: Member,
        optimizer: OwnSteps,
        gradient: GradientSum,
        journal: GossipJournal,
        threads: Threads,
        kept: JournalEntry | None,
        pulled: Tensor | None = None,
        take_contract: TakeContract = lambda contract: None,
    ) -> None:
        super().__init__(contract, threads, Lease(kept.trained_through if kept else None), take_contract)
        self.member = member
        """Belongs to the compute thread: see `event`."""
        self._optimizer = optimizer
        self._gradient = gradient
        self._journal = journal
        self._pulled = pulled
        self.finished = kept.finished if kept else 0
        """Iterations that are finished."""
        self.measure_at = 0
        """The iteration of which `Finished` shall have a sketch; 0 for none."""
        self._samples = kept.samples if kept else 0
        self.unreported = kept.unreported if kept else (0, 0.0)
        """Samples, and the sum of their losses, that the coordinator has not heard of. Set it before `finish` and
        `mix_late`: the journal keeps it, so that a node that is killed reports them."""
        self.saved = self._note(self.lease.trained_through)
        self.view = self._view()
        """The member as it was after the newest job."""
        self._pull()

    @property
    def iterations(self) -> int:
        """Of the run."""
        return self.contract.schedule.steps

    @property
    def is_done(self) -> bool:
        """Whether all iterations are finished."""
        return self.finished >= self.iterations

    def _amended(self, contract: Contract) -> None:
        self.member.ends_after(contract.schedule.steps)

    # events

    def event(self, take: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Let the compute thread call a method of the member. Each may be the last that a decision waits for."""
        return self.run(NodeJob.EXCHANGE, self._take, take, arguments)

    def _take(self, take: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        try:
            return take(*arguments)
        finally:
            self.view = self._view()

    def _view(self) -> MemberView:
        member = self.member
        may_begin = member.topology > 0 and not member.waits_to_adopt
        return MemberView(member.iteration, member.topology, may_begin, member.deadline, member.peers, member.awaited)

    def present(self, peer: int) -> list[Message]:
        """An event: the line to a peer is back. Returns the messages to send again."""
        self.member.present(peer)
        return self.member.unacknowledged(peer)

    # iterations

    async def begin_first(self) -> Sending:
        """Begin the first iteration. Its messages may leave when this returns."""
        return await self.run(NodeJob.SAVE, self._begin_first)

    def _begin_first(self) -> Sending:
        sending = self.member.begin()
        self.finished = max(self.finished, self.member.iteration)  # with a peer's parameters, its iterations are done
        self._pull()
        self._save(self.lease.trained_through)
        return sending

    def _pull(self) -> None:
        """Right after an iteration has begun, so that a node that continues from the journal computes the same."""
        if self._pulled is not None:
            exchange = self.contract.exchange
            assert isinstance(exchange, GossipSpec)
            self.member.pull(exchange.gradient_pull, self._pulled)

    async def begin_gradient(self) -> None:
        await self.run(NodeJob.MICRO_BATCH, self._gradient.begin)

    async def train(self, samples: int) -> int:
        """Train one micro-batch of up to `samples` samples of the lease. Returns their number. Raises Interrupted,
        BlobMissing."""
        positions = self.lease.take(samples)
        await self.run(NodeJob.MICRO_BATCH, self._gradient.add, positions)
        return len(positions)

    def keep(self, step: int | None) -> None:
        """Nothing is kept: what is not measured before the iteration is finished is not measured."""

    def holds(self, step: int) -> bool:
        """Whether the node computes this iteration, so that its parameters are those with which it begins."""
        return step == self.view.iteration and not self.is_done

    async def held_out_loss(self, step: int, name: str, samples: Sequence[int]) -> float | None:
        """The mean loss on held-out samples of the parameters with which an iteration begins; None if it is over.
        Raises Interrupted, BlobMissing."""
        return await self.run(NodeJob.EVALUATE, self._held_out_loss, step, name, samples)

    def _held_out_loss(self, step: int, name: str, samples: Sequence[int]) -> float | None:
        return self._gradient.held_out_loss(name, samples) if step == self.member.iteration else None

    async def finish(self, mix: Mix) -> Finished:
        """Mix, step, begin the next iteration, and write the journal."""
        return await self.run(NodeJob.SAVE, self._finish, mix, self.lease.trained_through)

    async def mix_late(self, mix: Mix) -> None:
        """Mix what has come after the last iteration, and write the journal."""
        await self.run(NodeJob.SAVE, self._mix_late, mix)

    def _mix_late(self, mix: Mix) -> None:
        self.member.mix(mix)
        self._save(self.saved.trained_through, self.saved.loss, self.saved.step_norm)

    def _finish(self, mix: Mix, trained_through: int | None) -> Finished:
        member, gradient = self.member, self._gradient.mean()
        iteration = member.iteration
        member.mix(mix)
        norm = 0.0
        if gradient.samples:
            before = member.x.clone()
            schedule = contract_at(self.contract, iteration).schedule
            rate = learning_rate(schedule, iteration)
            norm = self._optimizer.step(member.x, gradient.flat, rate, schedule.weight_decay)
            member.stepped(before.sub_(member.x))
        self._samples += gradient.samples
        samples, loss_sum = self.unreported
        self.unreported = samples + gradient.samples, loss_sum + gradient.loss * gradient.samples
        is_last = iteration + 1 >= self.iterations
        sending = [] if is_last else member.begin()
        self._pull()
        self.finished = self.iterations if is_last else member.iteration
        self._save(trained_through, gradient.loss if gradient.samples else None, norm)
        sketched = None
        if self.finished == self.measure_at:
            sketched = Sketched(self.finished, pack_sketch(member.x, self.finished), norm)
        return Finished(self.saved, sending, gradient, mix.missing, member.unreadable(), sketched)

    def _save(self, trained_through: int | None, loss: float | None = None, norm: float = 0.0) -> None:
        optimizer = self._optimizer
        state = self.member.state()
        numbers = optimizer.steps, self.finished, trained_through, self._samples, self.unreported
        entry = JournalEntry(state, optimizer.tensors(), *numbers)
        self._journal.write(entry)
        self.member.saved()
        self.view = self._view()
        self.saved = self._note(trained_through, loss, norm)

    def _note(self, trained_through: int | None, loss: float | None = None, norm: float = 0.0) -> Saved:
        member = self.member
        confirmed = {peer: member.received_from(peer) for peer in member.peers}
        place = member.topology, self.finished, member.head
        return Saved(*place, trained_through, self._samples, confirmed, loss, norm)

    async def parameters(self) -> bytes:
        """The parameters: float32, little-endian, flat."""
        return await self.run(NodeJob.COPY, lambda: self.member.x.numpy().astype("<f4", copy=False).tobytes())

    # the end

    def interrupt(self) -> None:
        """Abort the running micro-batch. The journal stands at the beginning of its iteration."""
        self._gradient.interrupt()

    async def drain(self) -> None:
        """Wait for the jobs that have started."""
        await self.run(NodeJob.DRAIN, lambda: None)
