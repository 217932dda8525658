"""From the samples of a lease to what a contribution is made of: a compute takes gradients, and the local rule learns
from them. One thread calls it; nothing here waits.

A node goes on computing while its contribution and the update are on their way. What it computes then stands on
parameters that are a step old when it counts, and points again to where the node's last contribution has led already.
So the trainer can look ahead: it then stands on the parameters as an update of the node's own votes alone would leave
them. docs/log/staleness.md has what staleness costs, and how much looking ahead saves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire_node.compression.momentum import Sent
from thinwire_node.training.compute import Compute
from thinwire_node.training.rules import make_rule
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.task import DataSource


class Trainer:
    """The local rule, and what it learns from.

    Where the replica lives on the compute's device, the compute works on the replica's tensors themselves; else on
    copies, which are made anew after each update. A rule with an offset has copies too, since it moves them. Only
    `look_ahead` takes a further set of tensors, where the replica lives, when it is first called. The set is used
    again as long as the replica stays there.
    """

    def __init__(self, contract: Contract, data: DataSource, replica: Replica, compute: Compute) -> None:
        self.replica = replica
        self.rule = make_rule(contract, replica.layout, compute.device)
        self.samples = 0
        self.dropped = 0
        """Micro-batches thrown away since the last extraction because their loss or gradient was not finite."""
        self.compute_s = 0.0
        """Spent on forward and backward, since the start."""
        self.base_step: int | None = None
        """The oldest step whose parameters a gradient since the last extraction was computed on; None without samples.
        Looking ahead from θ_s counts as step s."""
        self._contract = contract
        self._data = data
        self._compute = compute
        self._loss_sum = 0.0
        self._ahead: dict[str, Tensor] | None = None
        self._base: Mapping[str, Tensor] = {}  # what the compute stands on, without the rule's offset
        self.adopt(replica)

    def adopt(self, replica: Replica) -> None:
        """Train on this replica from now on; it ends looking ahead. What the rule has learned stays."""
        if replica.device != self.replica.device:
            self._ahead = None
        self.replica = replica
        self.refresh()

    def refresh(self, out: Sent | None = None) -> None:
        """The replica has changed: bring the compute up to it. It ends looking ahead, whether or not the update held
        this node's last contribution. With `out`, a contribution that is still under way, it looks ahead from here."""
        if out is None:
            self._stand_on(self.replica.tensors)
        else:
            self.look_ahead(out)

    @torch.no_grad()
    def look_ahead(self, out: Sent, share: float = 1.0) -> None:
        """Until the next `refresh`, train on the parameters as the next update would leave them if it held `out` alone,
        the node's own contribution that is under way. Nobody else sees these, so any arithmetic will do. A `share`
        other than 1 scales the step and not the decay. The replica is read and never written."""
        replica = self.replica
        if self._ahead is None:
            self._ahead = {name: torch.empty_like(tensor) for name, tensor in replica.tensors.items()}
        schedule, step = self._contract.schedule, replica.step
        shrink = decay(schedule, step)
        for batch, change in self.rule.step_of(out, learning_rate(schedule, step)):
            if share != 1:
                change.mul_(share)
            tiles = change.to(replica.device)
            for part in batch.parts:
                name = part.tensor.name
                theta, ahead = part.pieces(part.band(replica.tensors[name]), tiles), part.band(self._ahead[name])
                for (of_theta, of_tiles), (of_ahead, _) in zip(theta, part.pieces(ahead, tiles), strict=True):
                    torch.add(of_tiles, of_theta, alpha=shrink, out=of_ahead)
        self._stand_on(self._ahead)

    def _stand_on(self, tensors: Mapping[str, Tensor]) -> None:
        self._base = tensors
        self._compute.use(tensors, self.rule.offset)

    def interrupt(self) -> None:
        """Give up the micro-batch that runs, and any later one. May be called from any thread."""
        self._compute.interrupt()

    def micro_batch(self, positions: Sequence[int]) -> None:
        """Forward and backward on the samples at these positions; dropped and counted if anything is not finite.
        Raises Interrupted."""
        began = time.perf_counter()
        try:
            self._micro_batch(positions)
        finally:
            self.compute_s += time.perf_counter() - began

    def _micro_batch(self, positions: Sequence[int]) -> None:
        loss, gradients = self._compute.gradients(self._data.batch(positions))
        if not self._finite(loss, gradients):
            self.dropped += 1
            return
        step = self.replica.step
        rate = learning_rate(self._contract.schedule, step)
        self.rule.learn(self._compute.parameters, gradients, len(positions), rate)
        self.base_step = step if self.base_step is None else min(step, self.base_step)
        self.samples += len(positions)
        self._loss_sum += loss.item() * len(positions)

    def _finite(self, loss: Tensor, gradients: Mapping[str, Tensor]) -> bool:
        """Sums carry whatever is not finite, and cost one pass; one that overflows is of no use either."""
        sums = torch.stack([loss, *(gradient.sum() for gradient in gradients.values())])
        return bool(sums.isfinite().all())

    def extract(self, k: int) -> tuple[Sent, int, float]:
        """Take the largest components out of what the rule has learned: what is sent, how many samples it stands for,
        and their mean loss. Call it with one sample or more."""
        samples, loss = self.samples, self._loss_sum / self.samples
        sent = self.rule.extract(k, learning_rate(self._contract.schedule, self.replica.step))
        self._begin_anew()
        return sent, samples, loss

    def clear(self) -> None:
        """Forget what was learned since the last extraction."""
        self.rule.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing is learned yet and a rule's offset is 0, so the compute stands where it began."""
        if self.rule.offset is not None:
            self._stand_on(self._base)
        self.samples = 0
        self.dropped = 0
        self.base_step = None
        self._loss_sum = 0.0
