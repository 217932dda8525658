"""Forward and backward: from the samples of a lease to gradients, for the local rule to learn from. One thread calls
it; nothing here waits.

Computing goes on while a contribution and the update that it goes into are under way. What is computed then stands on
parameters that are a step old when it counts, and it points once more to where the node's last contribution has led
already. So the model can look ahead: it then stands on the parameters as an update of the node's own votes alone would
leave them. docs/log/staleness.md has what staleness costs, and what of it this mends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from thinwire_node.compression.momentum import Sent
from thinwire_node.training.rules import make_rule
from thinwire_proto.contract import Contract
from thinwire_proto.data.corpus import Corpus, windows
from thinwire_proto.data.order import sample_at
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.models import build


class Interrupted(Exception):
    """The micro-batch was given up in the middle; nothing of it was kept."""


class Trainer:
    """The model on the compute device, and the local rule that learns from its gradients.

    Where the replica lives on the same device, the model's parameters are the replica's tensors themselves; else they
    are copied after each update, and so they are for a rule with an offset, which moves them. Only `look_ahead` takes
    a further set of tensors, where the replica lives, when it is first called; it is used again as long as the replica
    stays there.
    """

    def __init__(self, contract: Contract, corpus: Corpus, replica: Replica, device: torch.device) -> None:
        self.replica = replica
        self.rule = make_rule(contract, replica.layout, device)
        self.samples = 0
        self.dropped = 0
        """Micro-batches thrown away since the last cut because their loss or gradient was not finite."""
        self.compute_s = 0.0
        """Spent on forward and backward, since the start."""
        self.base_step: int | None = None
        """The oldest step whose parameters a gradient since the last cut was computed on; None without samples.
        Looking ahead from θ_s counts as step s."""
        self._contract = contract
        self._device = device
        self._windows = windows(corpus.train, contract.model.context)
        self._loss_sum = 0.0
        self._ahead: dict[str, Tensor] | None = None
        self._interrupted = threading.Event()
        self._model = build(contract.model, device)
        for block in self._model.blocks:
            block.register_forward_hook(self._between_blocks)
        self._parameters = dict(self._model.named_parameters())
        self._base: Mapping[str, Tensor] = {}  # what the model stands on, but for the rule's offset
        self.adopt(replica)

    def adopt(self, replica: Replica) -> None:
        """Train on this replica from now on; it ends looking ahead. What the rule has learned stays."""
        if replica.device != self.replica.device:
            self._ahead = None
        self.replica = replica
        self.refresh()

    def refresh(self, out: Sent | None = None) -> None:
        """The replica has changed: bring the model up to it. It ends looking ahead, whether the update held this node's
        last contribution or not; with `out`, a contribution that is still under way, it looks ahead from here."""
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

    @torch.no_grad()
    def _stand_on(self, tensors: Mapping[str, Tensor]) -> None:
        """Make these the model's parameters: the tensors themselves on the same device, else a copy of them, moved by
        the rule's offset if it has one."""
        self._base, offset = tensors, self.rule.offset
        for name, parameter in self._parameters.items():
            if offset is not None:
                parameter.copy_(tensors[name]).add_(offset[name])
            elif self.replica.device == self._device:
                parameter.data = tensors[name]
            else:
                parameter.copy_(tensors[name])

    def interrupt(self) -> None:
        """Give up the micro-batch that runs, and any later one, between two blocks: on a slow machine it may have
        minutes left. May be called from any thread."""
        self._interrupted.set()

    def _between_blocks(self, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Runs behind each block, in forward and in backward."""
        self._go_on()
        output.register_hook(lambda gradient: self._go_on())  # type: ignore[no-untyped-call]

    def _go_on(self) -> None:
        if self._interrupted.is_set():
            raise Interrupted

    def micro_batch(self, positions: Sequence[int]) -> None:
        """Forward and backward on the samples at these positions; dropped and counted if anything is not finite.
        Raises Interrupted."""
        began = time.perf_counter()
        try:
            self._micro_batch(positions)
        finally:
            self.compute_s += time.perf_counter() - began

    def _micro_batch(self, positions: Sequence[int]) -> None:
        data, count = self._contract.data, len(self._windows)
        rows = np.stack([self._windows[sample_at(position, data.seed, count, data.order)] for position in positions])
        tokens = torch.from_numpy(rows.astype(np.int64)).to(self._device)
        # compute may be bfloat16; the master stays float32 (design section 3.6)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            loss = self._model.loss(tokens)
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        if not self._finite(loss, gradients):
            self.dropped += 1
            return
        step = self.replica.step
        of = dict(zip(self._parameters, gradients, strict=True))
        self.rule.learn(self._parameters, of, len(positions), learning_rate(self._contract.schedule, step))
        self.base_step = step if self.base_step is None else min(step, self.base_step)
        self.samples += len(positions)
        self._loss_sum += loss.item() * len(positions)

    def _finite(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> bool:
        """Sums carry whatever is not finite, and cost one pass; one that overflows is of no use either."""
        sums = torch.stack([loss, *(gradient.sum() for gradient in gradients)])
        return bool(sums.isfinite().all())

    def extract(self, k: int) -> tuple[Sent, int, float]:
        """Take the largest components out of what the rule has learned: what is sent, how many samples it stands for,
        and their mean loss. Call it with one sample or more."""
        samples, loss = self.samples, self._loss_sum / self.samples
        sent = self.rule.extract(k, learning_rate(self._contract.schedule, self.replica.step))
        self._begin_anew()
        return sent, samples, loss

    def clear(self) -> None:
        """Forget what was learned since the last cut."""
        self.rule.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing was learned since the last cut, and a rule's offset is 0: the model stands where it began."""
        if self.rule.offset is not None:
            self._stand_on(self._base)
        self.samples = 0
        self.dropped = 0
        self.base_step = None
        self._loss_sum = 0.0
