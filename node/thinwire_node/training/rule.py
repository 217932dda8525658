"""The local rule: what a node does with the gradient of each micro-batch between two cuts, and what a cut takes out.

`demo`: gradients add up, and their mean feeds the momentum at the cut (arXiv 2411.19870).

`local_adamw`: each micro-batch is a step of AdamW on the node's own copy of the parameters, θ_local. At the cut, the
difference θ_base − θ_local feeds a buffer of what was not sent yet, the error feedback (arXiv 2508.15706, 2510.03371).

    offset = θ_local − θ_base               0 after each cut
    offset ← offset − η·(m̂ / (√v̂ + ε) + λ·θ_local)    each micro-batch; m and v stay from round to round
    e ← β·e − offset                        at the cut; then the largest components of e are taken, as DeMo's are

What both share, the buffer and the cut, is `Momentum`. docs/local-rules.md says what else was chosen, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from thinwire_node.compression.momentum import Momentum, Sent
from thinwire_node.compression.precondition import SecondMoment
from thinwire_proto.contract import Contract, RuleSpec
from thinwire_proto.exact.tiles import Batch, TileLayout, layout_of

Tensors = Mapping[str, Tensor]
"""By the parameter's name, float32, in its shape."""


class Rule(Protocol):
    """`momentum` is the buffer that cuts are taken out of. `rate` is the schedule's learning rate η."""

    momentum: Momentum

    @property
    def offset(self) -> Tensors | None:
        """θ_local − θ_base, on the compute device; None where gradients are of θ_base itself. It outlives an update
        that comes between two micro-batches: θ_local ← θ_new + offset. So what was learned is kept and sent once, and
        nothing that others sent is undone."""

    def learn(self, parameters: Tensors, gradients: Tensors, samples: int, rate: float) -> None:
        """Take in the mean gradient of a micro-batch of so many samples. parameters: θ_local, moved in place by a rule
        that has an `offset`, and left alone by one that has none."""

    def extract(self, k: int, rate: float) -> Sent:
        """Take the k largest components of each tile out of what was learned. `offset` is 0 from then on."""

    def put_back(self, sent: Sent) -> None:
        """It was not counted: see `Momentum.put_back`."""

    def step_of(self, sent: Sent, rate: float) -> Iterator[tuple[Batch, Tensor]]:
        """What an update that held `sent` alone would add to the parameters: see `Momentum.steps`."""

    def clear(self) -> None:
        """Forget what was learned since the last cut. Moments keep it: they are means over many rounds."""

    def forget(self) -> None:
        """Forget all that was ever learned."""

    def state(self) -> dict[str, Tensor]:
        """Copies of what goes on disk, float32, by name. Not what was learned since the last cut."""

    def load(self, state: Tensors) -> None:
        """Go on from `state`."""


class _Compressed:
    """What all rules share: the buffer, and how what leaves it is sent, put back, and foretold."""

    def __init__(self, contract: Contract, layout: TileLayout, device: torch.device | str) -> None:
        self.momentum = Momentum(layout, contract.demo, device)
        self._contract = contract

    def put_back(self, sent: Sent) -> None:
        self.momentum.put_back(sent)

    def step_of(self, sent: Sent, rate: float) -> Iterator[tuple[Batch, Tensor]]:
        carries_magnitude = self._contract.demo.magnitude == "tile"
        return self.momentum.steps(sent, self._contract.rule.outer_rate if carries_magnitude else rate)


class DemoRule(_Compressed):
    """`demo`: the mean gradient of all samples since the last cut, into the momentum."""

    offset = None

    def __init__(self, contract: Contract, layout: TileLayout, device: torch.device | str) -> None:
        super().__init__(contract, layout, device)
        self._gradients = {tensor.name: torch.zeros(tensor.shape, device=device) for tensor in layout.tensors}
        self._samples = 0

    @torch.no_grad()
    def learn(self, parameters: Tensors, gradients: Tensors, samples: int, rate: float) -> None:
        for name, total in self._gradients.items():
            total.add_(gradients[name], alpha=samples)
        self._samples += samples

    def extract(self, k: int, rate: float) -> Sent:
        sent = self.momentum.accumulate_and_extract(self._gradients, rate, self._samples, k)
        self.clear()
        return sent

    def clear(self) -> None:
        for total in self._gradients.values():
            total.zero_()
        self._samples = 0

    def forget(self) -> None:
        self.clear()
        self.momentum.forget()

    def state(self) -> dict[str, Tensor]:
        return self.momentum.state()

    def load(self, state: Tensors) -> None:
        self.momentum.load(state)


class LocalAdamW(_Compressed):
    """`local_adamw`: a step of AdamW each micro-batch (arXiv 1711.05101, algorithm 2, with λ·η for the decay)."""

    def __init__(self, contract: Contract, layout: TileLayout, device: torch.device | str) -> None:
        super().__init__(contract, layout, device)
        self._moments = Moments(layout, contract.rule, device)
        self._decay = contract.rule.weight_decay
        self._offset = {tensor.name: torch.zeros(tensor.shape, device=device) for tensor in layout.tensors}

    @property
    def offset(self) -> Tensors:
        return self._offset

    @torch.no_grad()
    def learn(self, parameters: Tensors, gradients: Tensors, samples: int, rate: float) -> None:
        self._moments.begin()
        for name, offset in self._offset.items():
            step = self._moments.step(name, gradients[name]).add_(parameters[name], alpha=self._decay)
            offset.sub_(step, alpha=rate)
            parameters[name].sub_(step, alpha=rate)

    def extract(self, k: int, rate: float) -> Sent:
        sent = self.momentum.accumulate_and_extract(self._offset, -1.0, 1, k)
        self.clear()
        return sent

    def clear(self) -> None:
        for offset in self._offset.values():
            offset.zero_()

    def forget(self) -> None:
        self.clear()
        self.momentum.forget()
        for tensor in self._moments.tensors().values():
            tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        return self.momentum.state() | {name: tensor.clone() for name, tensor in self._moments.tensors().items()}

    def load(self, state: Tensors) -> None:
        moments = self._moments.tensors()
        for name, tensor in moments.items():
            tensor.copy_(state[name])
        self.momentum.load({name: tensor for name, tensor in state.items() if name not in moments})


class Moments:
    """Both moments of Adam, with bias correction (arXiv 1412.6980, algorithm 1)."""

    def __init__(self, layout: TileLayout, spec: RuleSpec, device: torch.device | str) -> None:
        self._second = SecondMoment(layout, spec.beta2, device)
        self._beta = spec.beta1
        self._flat = torch.zeros(layout.parameters, device=device)
        self._weight = torch.zeros(1)  # what β₁ⁿ has left out so far, as in SecondMoment
        ends = accumulate(tensor.rows * tensor.columns for tensor in layout.tensors)
        self._of = {
            tensor.name: self._flat[end - tensor.rows * tensor.columns : end].view(tensor.shape)
            for tensor, end in zip(layout.tensors, ends, strict=True)
        }

    def begin(self) -> None:
        """A new gradient is coming, tensor by tensor."""
        self._second.begin()
        self._weight.mul_(self._beta).add_(1 - self._beta)

    def step(self, name: str, gradient: Tensor) -> Tensor:
        """m̂ / (√v̂ + ε) of one tensor, its gradient included; a tensor of its own."""
        first = self._of[name]
        first.mul_(self._beta).add_(gradient, alpha=1 - self._beta)
        return self._second.root(name, gradient).reciprocal_().mul_(first).div_(self._weight.item())

    def tensors(self) -> dict[str, Tensor]:
        """All that is learned here, by name; not copies."""
        return {"first": self._flat, "first_weight": self._weight} | self._second.tensors()


def make_rule(contract: Contract, layout: TileLayout, device: torch.device | str) -> Rule:
    """The rule that the contract names."""
    rule: Rule = (LocalAdamW if contract.rule.name == "local_adamw" else DemoRule)(contract, layout, device)
    return rule


def shapes_kept(contract: Contract) -> dict[str, tuple[int, ...]]:
    """The shapes of `Rule.state`, without taking the memory."""
    rule = make_rule(contract, layout_of(contract.parameters), "meta")
    return {name: tuple(tensor.shape) for name, tensor in rule.state().items()}
