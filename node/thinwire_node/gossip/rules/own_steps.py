"""The port to the optimizer of a node that steps by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from thinwire_node.rules import RULES
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout


class OwnSteps(Protocol):
    """Steps on flat parameters, on the CPU, with moments that can be saved and continued to the bit. steps: those taken
    so far."""

    steps: int

    def step(self, x: Tensor, gradient: Tensor, rate: float, weight_decay: float) -> float:
        """Change x in place by a step on this gradient. Returns the norm of the step without the decay.

        x, gradient: float32 [parameters]. The gradient is used up. rate, weight_decay: η and λ of this step."""

    def tensors(self) -> dict[str, Tensor]:
        """The moments by name. Not copies."""

    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Continue from what `tensors` returned, which may be this object's own from now on. Raises ValueError for
        tensors of other names or shapes."""


def check_saved(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless saved moments have the names and shapes of one's own."""
    for name in own.keys() | saved.keys():
        shapes = [tuple(of[name].shape) if name in of else None for of in (saved, own)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{name!r} of its optimizer has the shape {shapes[0]}, not {shapes[1]}")


def make_own_steps(contract: Contract, layout: TileLayout) -> OwnSteps:
    """The optimizer that the contract names. Raises ContractError if this version does not have it."""
    steps: OwnSteps = RULES[contract.rule.kind](contract, layout)
    return steps
