"""The rule `local_muon`: each micro-batch is a step of Muon on the node's own parameters (MuLoCo, arXiv 2505.23725).

    M ← ν·M + (θ_base − θ_local)                    at the extraction: the outer momentum, with Nesterov's step
    e ← β·e + (θ_base − θ_local) + ν·M

`thinwire_proto.muon` has the step of a matrix. Embeddings and all tensors that are not matrices take steps of AdamW.
The outer momentum lives on each node: the mean of the nodes' momenta is the momentum of their mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from thinwire.compression.compress import zeros
from thinwire.compression.sent import Sent
from thinwire_node.rules import RULES
from thinwire_node.star.rules.local_steps import LocalSteps
from thinwire_node.star.rules.rule import Device
from thinwire_node.training.adam_moments import AdamMoments
from thinwire_proto.contract import ADAM_BETAS, Contract, LocalMuonSpec, Parameter
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.muon import muon_step
from thinwire_proto.out_of_memory import retry_out_of_memory


@RULES.register("local_muon")
class LocalMuon(LocalSteps):
    """Makes a step of Muon for each micro-batch."""

    def __init__(self, contract: Contract, layout: TileLayout, device: Device, moments_on: Device) -> None:
        super().__init__(contract, layout, device, moments_on)
        rule = contract.rule
        assert isinstance(rule, LocalMuonSpec)
        self._rule = rule
        parameters = [Parameter(name=one.name, shape=one.shape) for one in layout.tensors]  # or the range of a process
        matrices = tuple(parameter for parameter in parameters if rule.takes(parameter))
        others = tuple(parameter for parameter in parameters if not rule.takes(parameter))
        self._moments = AdamMoments(layout_of(others), *ADAM_BETAS, moments_on)
        of_matrices = layout_of(matrices)
        self._inner_flat = zeros((of_matrices.parameters,), moments_on)
        self._inner = of_matrices.unflattened(self._inner_flat)
        self._outer_flat = zeros((layout.parameters,), moments_on)
        self._outer = layout.unflattened(self._outer_flat)

    def _begin(self) -> None:
        self._moments.begin()

    def _step(self, name: str, gradient: Tensor) -> Tensor:
        if name not in self._inner:
            return self._moments.step(name, gradient).mul_(self._rule.adamw_rate)
        with on(gradient.device, self._inner[name]) as inner:
            return muon_step(inner, gradient, self._rule.momentum)

    @torch.no_grad()
    def extract(self, k: int, rate: float) -> Sent:
        for name, offset in self.offset.items():
            with on(offset.device, self._outer[name]) as outer:
                add_outer(outer, offset, self._rule.outer_momentum)
        return super().extract(k, rate)

    def _kept(self) -> dict[str, Tensor]:
        return self._moments.tensors() | {"inner": self._inner_flat, "outer": self._outer_flat}


@contextmanager
def on(device: torch.device, kept: Tensor) -> Iterator[Tensor]:
    """Provide a tensor on another device, and copy it back at the end. If it is there already, it is used itself."""
    here = retry_out_of_memory(lambda: kept.to(device))
    yield here
    if here is not kept:
        kept.copy_(here)


def add_outer(outer: Tensor, offset: Tensor, decay: float) -> None:
    """Add a node's difference, the negative of `offset`, to its outer momentum, and Nesterov's step to the offset."""
    outer.mul_(decay).sub_(offset)
    offset.sub_(outer, alpha=decay)
