"""The rule `demo`: sums gradients and adds their mean to the momentum at the extraction (arXiv 2411.19870)."""

from __future__ import annotations

from torch import Tensor

from thinwire.compression.compress import zeros
from thinwire.compression.sent import Sent
from thinwire_node.rules import RULES
from thinwire_node.star.rules.rule import Device, Rule, Tensors
from thinwire_node.training.gradient_receiver import add_gradient
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout


@RULES.register("demo")
class DemoRule(Rule):
    """Adds the mean gradient of all samples since the last extraction to the momentum."""

    sums: dict[str, Tensor]

    def __init__(self, contract: Contract, layout: TileLayout, device: Device, moments_on: Device) -> None:
        super().__init__(contract, layout, moments_on)
        self.sums = {tensor.name: zeros(tensor.shape, device) for tensor in layout.tensors}
        self._samples = 0

    def learn(self, parameters: Tensors, gradients: Tensors | None, samples: int, rate: float) -> None:
        if gradients is not None:
            add_gradient(self.sums, gradients, samples)
        self._samples += samples

    def extract(self, k: int, rate: float) -> Sent:
        sent = self.momentum.accumulate_and_extract(self.sums, rate, self._samples, k)
        self.clear()
        return sent

    def clear(self) -> None:
        for total in self.sums.values():
            total.zero_()
        self._samples = 0
