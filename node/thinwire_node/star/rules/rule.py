"""A local rule: it learns from the gradient of each micro-batch, and extracts contributions from a `Momentum`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire_node.rules import RULES
from thinwire_proto.contract import Contract, VotingRuleSpec
from thinwire_proto.exact.tiles import Batch, TileLayout, layout_of

Device = torch.device | str
Tensors = Mapping[str, Tensor]
"""Tensors by parameter name, float32, in the parameter's shape."""


class Rule(ABC):
    """A local rule. moments_on: the device of the momentum and the moments; if it is another than that of the
    gradients, they take no memory of a small card. rate: the learning rate η."""

    sums: Tensors | None = None
    """Sums of gradients, each weighted by its samples, since the last extraction. A compute adds gradients to them as
    it has them, and `learn` then gets none. None for a rule that needs the gradient of each micro-batch."""
    offset: Tensors | None = None
    """θ_local − θ_base on the compute device; None if gradients are computed on θ_base itself.

    It survives an update between two micro-batches: θ_local ← θ_new + offset. So the node sends what it learned exactly
    once and does not undo the contributions of others."""

    def __init__(self, contract: Contract, layout: TileLayout, moments_on: Device) -> None:
        self.momentum = Momentum(layout, contract.demo, moments_on)
        """The buffer that extractions take components from."""
        self._contract = contract

    @abstractmethod
    def learn(self, parameters: Tensors, gradients: Tensors | None, samples: int, rate: float) -> None:
        """Learn from the mean gradient of a micro-batch of `samples` samples. gradients: None if they are in `sums`.

        parameters: θ_local. A rule with an `offset` changes them in place; other rules do not."""

    @abstractmethod
    def extract(self, k: int, rate: float) -> Sent:
        """Extract the k largest components of each tile. Sets `offset` to 0."""

    @abstractmethod
    def clear(self) -> None:
        """Discard what was learned since the last extraction, except in the moments: they are means over many
        rounds."""

    def _kept(self) -> dict[str, Tensor]:
        """The tensors that stay from round to round besides the momentum, by name, not copied."""
        return {}

    def put_back(self, sent: Sent) -> None:
        """Put back a contribution that was not counted: see `Momentum.put_back`."""
        self.momentum.put_back(sent)

    def decode_changes(self, use: Callable[[Batch, Tensor], None], sent: Sent, rate: float) -> None:
        """Decode the change of the parameters by an update that holds `sent` alone: see `Momentum.decode_changes`."""
        carries_magnitude = self._contract.demo.magnitude == "tile"
        assert isinstance(self._contract.rule, VotingRuleSpec)
        self.momentum.decode_changes(use, sent, self._contract.rule.update_factor if carries_magnitude else rate)

    def amend(self, contract: Contract) -> None:
        """Go on under another contract of the run."""
        self._contract = contract
        self.momentum.amend(contract.demo)

    def forget(self) -> None:
        """Discard everything that was learned."""
        self.clear()
        self.momentum.forget()
        for tensor in self._kept().values():
            tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        """The tensors to save, float32, by name, not copied. Excludes what was learned since the last extraction."""
        return self.momentum.tensors() | self._kept()

    def load(self, state: Tensors) -> None:
        """Continue from `state`, whose tensors may be the rule's own from now on."""
        kept = self._kept()
        for name, tensor in kept.items():
            tensor.copy_(state[name])
        self.momentum.load({name: tensor for name, tensor in state.items() if name not in kept})


def make_rule(contract: Contract, layout: TileLayout, device: Device, moments_on: Device | None = None) -> Rule:
    """Create the rule that the contract names. moments_on: None: `device`. Raises ContractError if this version does
    not have the rule."""
    rule: Rule = RULES[contract.rule.kind](contract, layout, device, device if moments_on is None else moments_on)
    return rule


def shapes_kept(contract: Contract) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in `Rule.state`, without allocating them."""
    rule = make_rule(contract, layout_of(contract.parameters), "meta")
    return {name: tuple(tensor.shape) for name, tensor in rule.state().items()}
