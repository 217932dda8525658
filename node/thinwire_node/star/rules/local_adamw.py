"""The rule `local_adamw`: each micro-batch is a step of AdamW on the node's own parameters.

The moments are kept from round to round.
"""

from __future__ import annotations

from torch import Tensor

from thinwire_node.rules import RULES
from thinwire_node.star.rules.local_steps import LocalSteps
from thinwire_node.star.rules.rule import Device
from thinwire_node.training.adam_moments import AdamMoments
from thinwire_proto.contract import ADAM_BETAS, Contract
from thinwire_proto.exact.tiles import TileLayout


@RULES.register("local_adamw")
class LocalAdamW(LocalSteps):
    """Makes a step of AdamW for each micro-batch (arXiv 1711.05101). `schedule.weight_decay` is that of the update."""

    def __init__(self, contract: Contract, layout: TileLayout, device: Device, moments_on: Device) -> None:
        super().__init__(contract, layout, device, moments_on)
        self._moments = AdamMoments(layout, *ADAM_BETAS, moments_on)

    def _begin(self) -> None:
        self._moments.begin()

    def _step(self, name: str, gradient: Tensor) -> Tensor:
        return self._moments.step(name, gradient)

    def _kept(self) -> dict[str, Tensor]:
        return self._moments.tensors()
