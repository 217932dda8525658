"""The local rule: what a node does with the gradient of each micro-batch between two extractions, and what an
extraction takes out. All kinds share the buffer and the extraction, which is `Momentum`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from thinwire_node.compression.momentum import Momentum, Sent
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import Batch, TileLayout, layout_of
from thinwire_proto.kinds import Kinds

Tensors = Mapping[str, Tensor]
"""By the parameter's name, float32, in its shape."""


class Rule(Protocol):
    """`momentum` is the buffer that extractions take from. `rate` is the schedule's learning rate η."""

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
        """Forget what was learned since the last extraction. Moments keep it: they are means over many rounds."""

    def forget(self) -> None:
        """Forget all that was ever learned."""

    def state(self) -> dict[str, Tensor]:
        """Copies of what goes on disk, float32, by name. Not what was learned since the last extraction."""

    def load(self, state: Tensors) -> None:
        """Go on from `state`."""


class Compressed:
    """What all rules share: the buffer, and how what leaves it is sent, put back, and foretold."""

    def __init__(self, contract: Contract, layout: TileLayout, device: torch.device | str) -> None:
        self.momentum = Momentum(layout, contract.demo, device)
        self._contract = contract

    def put_back(self, sent: Sent) -> None:
        self.momentum.put_back(sent)

    def step_of(self, sent: Sent, rate: float) -> Iterator[tuple[Batch, Tensor]]:
        carries_magnitude = self._contract.demo.magnitude == "tile"
        return self.momentum.steps(sent, self._contract.rule.outer_rate if carries_magnitude else rate)


RULES: Kinds[Callable[[Contract, TileLayout, torch.device | str], Rule]] = Kinds("rule", __package__)
"""By `rule.kind`: makes the rule."""


def make_rule(contract: Contract, layout: TileLayout, device: torch.device | str) -> Rule:
    """The rule that the contract names. Raises ContractError if this thinwire does not have it."""
    return RULES[contract.rule.kind](contract, layout, device)


def shapes_kept(contract: Contract) -> dict[str, tuple[int, ...]]:
    """The shapes of `Rule.state`, without taking the memory."""
    rule = make_rule(contract, layout_of(contract.parameters), "meta")
    return {name: tuple(tensor.shape) for name, tensor in rule.state().items()}
