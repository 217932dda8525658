"""The rule `demo`: sums gradients and adds their mean to the momentum at the extraction (arXiv 2411.19870)."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire_node.compression.momentum import Sent
from thinwire_node.training.rules.rule import RULES, Compressed, Tensors
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout


@RULES.register("demo")
class DemoRule(Compressed):
    """Adds the mean gradient of all samples since the last extraction to the momentum."""

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
