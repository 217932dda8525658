"""Trains on the samples of a lease: a `Compute` takes the gradients and the local rule learns from them.

One thread calls the trainer. No method blocks.

A node keeps training while its contribution and the update travel. Its gradients then use parameters that are one step
old by the time they count, and they repeat part of the node's last contribution. So the trainer can look ahead: it
trains on the parameters that an update of the node's own votes alone would produce. docs/log/staleness.md has the cost
of staleness and the savings from looking ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire.compression.sent import Sent
from thinwire_node.star.rules import make_rule
from thinwire_node.training.compute import Compute
from thinwire_node.training.failures import Interrupted, NotFinite
from thinwire_node.training.gradient_receiver import Tensors
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.tiles import Batch, TileLayout
from thinwire_proto.task import Batch as SampleBatch
from thinwire_proto.task import DataSource


class Trainer:
    """Trains a local rule on gradients.

    If the replica is on the compute's device, the compute uses the replica's own tensors. Otherwise it uses copies,
    made anew after each update. A rule with an offset uses copies too, because it changes them. Looking ahead takes one
    more set of tensors on the replica's device, which is kept while the replica stays there.

    moments_on: the device of the rule's momentum and moments; None: that of the compute. layout: of what the rule
    holds; None: that of the replica."""

    def __init__(
        self,
        contract: Contract,
        data: DataSource,
        replica: Replica,
        compute: Compute,
        moments_on: torch.device | None = None,
        layout: TileLayout | None = None,
    ) -> None:
        self.replica = replica
        self.rule = make_rule(contract, layout or replica.layout, compute.device, moments_on)
        self.samples = 0
        self.dropped = 0
        """Micro-batches thrown away since the last extraction because their loss or gradient was not finite."""
        self.compute_s = 0.0
        """Seconds spent on forward and backward passes since the start."""
        self.base_step: int | None = None
        """The oldest step whose parameters contributed to the gradient since the last extraction; None without samples.
        Looking ahead from θ_s counts as step s."""
        self._contract = contract
        self._data = data
        self._compute = compute
        self._loss_sum = 0.0
        self._weight = 0  # of `_loss_sum`
        self._ahead: dict[str, Tensor] | None = None
        self._base: Mapping[str, Tensor] = {}  # the compute's parameters, without the rule's offset
        self.adopt(replica)

    def adopt(self, replica: Replica) -> None:
        """Train on this replica from now on, and stop looking ahead. The rule keeps what it has learned."""
        if replica.device != self.replica.device:
            self._ahead = None
        self.replica = replica
        self.refresh()

    def amend(self, contract: Contract) -> None:
        """Go on under another contract of the run."""
        self._contract = contract
        self.rule.amend(contract)

    @torch.no_grad()
    def refresh(self, out: Sequence[Sent] = ()) -> None:
        """Until the next call, train on the replica as it is now; or look ahead from it, on the parameters that updates
        with `out` alone would produce.

        out: the node's own contributions that are in flight, the oldest first. No other node sees these parameters, so
        the arithmetic need not be exact. The replica is not changed."""
        replica = self.replica
        if not out:
            self._stand_on(replica.tensors)
            return
        if self._ahead is None:
            self._ahead = {name: torch.empty_like(tensor) for name, tensor in replica.tensors.items()}
        base = replica.tensors
        for later, sent in enumerate(out):
            self._step_ahead(base, self._ahead, sent, replica.step + later)
            base = self._ahead
        self._stand_on(self._ahead)

    def _step_ahead(self, base: Mapping[str, Tensor], into: Mapping[str, Tensor], sent: Sent, step: int) -> None:
        """Put the base after an update with `sent` alone into tensors, which may be the base."""
        schedule = self._contract.schedule
        shrink = decay(schedule, step)

        def add(batch: Batch, change: Tensor) -> None:
            tiles = change.to(self.replica.device)
            for part in batch.parts:
                name = part.tensor.name
                theta, ahead = part.pieces(part.band(base[name]), tiles), part.band(into[name])
                for (of_theta, of_tiles), (of_ahead, _) in zip(theta, part.pieces(ahead, tiles), strict=True):
                    torch.add(of_tiles, of_theta, alpha=shrink, out=of_ahead)

        self.rule.decode_changes(add, sent, learning_rate(schedule, step))

    def _stand_on(self, tensors: Mapping[str, Tensor]) -> None:
        self._base = tensors
        self._compute.use(tensors, self.rule.offset)

    def interrupt(self) -> None:
        """Abort the running micro-batch and every later one. May be called from any thread."""
        self._compute.interrupt()

    def resume(self) -> None:
        """Train again after `interrupt`. May be called from any thread."""
        self._compute.resume()

    def micro_batch(self, positions: Sequence[int]) -> None:
        """Train on the samples at these positions. Drops and counts the micro-batch if its loss or gradient is not
        finite. Raises Interrupted and TooLittleMemory."""
        began = time.perf_counter()
        try:
            self._micro_batch(positions)
        finally:
            self.compute_s += time.perf_counter() - began

    def _micro_batch(self, positions: Sequence[int]) -> None:
        batch = self._data.batch(positions)
        try:
            self._compute.micro_batch.in_pieces(batch, self.rule.sums, self._train)
        except NotFinite as error:
            dropped = self.dropped + 1
            if error.spoils:
                self.clear()
            self.dropped = dropped
        except Interrupted as error:
            if error.spoils:
                self.clear()
            else:
                self._lighten(error.added, error.weight)
            raise

    @torch.no_grad()
    def _lighten(self, names: Iterable[str], weight: int) -> None:
        """Let the sums of these tensors, which hold a gradient more with this weight, weigh as much as the others.

        Their mean stays what it is, over a few samples more. To take the gradient back would take as long as the pass
        that was cut off, and to keep it, as much memory as the sums."""
        sums = self.rule.sums
        assert sums is not None or not weight
        for name in names:
            if sums is not None and name in sums:
                sums[name].mul_(self._weight / max(1, self._weight + weight))

    def _train(self, batch: SampleBatch, sums: Tensors | None) -> None:
        """Learn from a batch that fits into memory. sums: of the rule, those that the gradient is not in yet."""
        step, count, gradients = self.replica.step, self._samples_of(batch), None
        rate = learning_rate(self._contract.schedule, step)
        if sums is not None:
            weight = self._compute.weight(batch)
            loss = self._compute.add_gradients(batch, sums, weight)
        else:
            loss, gradients = self._compute.gradients(batch)
            weight = self._weight_of_step(batch)
        self.rule.learn(self._compute.parameters, gradients, weight, rate)
        self.base_step = step if self.base_step is None else min(step, self.base_step)
        self.samples += count
        self._weight += weight
        self._loss_sum += loss.item() * weight

    def _samples_of(self, batch: SampleBatch) -> int:
        """The samples that a step on a batch learns from."""
        return len(batch[0])

    def _weight_of_step(self, batch: SampleBatch) -> int:
        """The weight of the loss and the gradient that `Compute.gradients` has just found."""
        return self._compute.weight(batch)

    def held_out_loss(self, tensors: Mapping[str, Tensor], name: str, samples: Sequence[int]) -> float:
        """The mean loss of these parameters on samples of the held-out set `name`, in float32. Raises Interrupted, and
        BlobMissing if the data are not here."""
        return self._compute.loss(tensors, self._data.held_out(name, samples))

    def extract(self, k: int) -> tuple[Sent, int, float]:
        """Extract the largest components from the rule's momentum. Returns them, the number of samples and their mean
        loss. Requires at least one sample."""
        samples, loss = self.samples, self._loss_sum / self._weight
        sent = self.rule.extract(k, learning_rate(self._contract.schedule, self.replica.step))
        self._begin_anew()
        return sent, samples, loss

    def clear(self) -> None:
        """Discard what the rule has learned since the last extraction."""
        self.rule.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Reset the counts. The rule's offset is 0 now, so the compute returns to its base parameters."""
        if self.rule.offset is not None:
            self._stand_on(self._base)
        self.samples = 0
        self.dropped = 0
        self.base_step = None
        self._loss_sum = 0.0
        self._weight = 0
