"""The rule `local_muon`: each micro-batch is a step of Muon on the node's own parameters (MuLoCo, arXiv 2505.23725).

    m ← μ·m + g                                     of a matrix
    step = orthogonal(g + μ·m) · 0.2·√max(rows, columns)
    M ← ν·M + (θ_base − θ_local)                    at the extraction: the outer momentum, with Nesterov's step
    e ← β·e + (θ_base − θ_local) + ν·M

The factor makes a step as large as one of AdamW (arXiv 2502.16982). Embeddings and all tensors that are not matrices
take steps of AdamW. The outer momentum lives on each node: the mean of the nodes' momenta is the momentum of their
mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thinwire_node.compression.sent import Sent
from thinwire_node.compression.zeros import zeros
from thinwire_node.training.rules.adam_moments import AdamMoments
from thinwire_node.training.rules.local_steps import LocalSteps
from thinwire_node.training.rules.rule import RULES
from thinwire_proto.contract import Contract, LocalMuonSpec
from thinwire_proto.exact.tiles import TileLayout, layout_of

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: singular values from 0.001 to 1 end between 0.7 and 1.2 (Jordan et al., Muon, 2024)."""
ITERATIONS = 5
ADAMW_STEP = 0.2
"""Root mean square of a step of AdamW (arXiv 2502.16982)."""
EPSILON = 1e-7


@RULES.register("local_muon")
class LocalMuon(LocalSteps):
    """Makes a step of Muon for each micro-batch."""

    def __init__(self, contract: Contract, layout: TileLayout, device: torch.device | str) -> None:
        super().__init__(contract, layout, device)
        rule = contract.rule
        assert isinstance(rule, LocalMuonSpec)
        self._rule = rule
        matrices = tuple(parameter for parameter in contract.parameters if rule.takes(parameter))
        others = tuple(parameter for parameter in contract.parameters if not rule.takes(parameter))
        self._moments = AdamMoments(layout_of(others), rule.beta1, rule.beta2, device)
        of_matrices = layout_of(matrices)
        self._inner_flat = zeros((of_matrices.parameters,), device)
        self._inner = of_matrices.unflattened(self._inner_flat)
        self._outer_flat = zeros((layout.parameters,), device)
        self._outer = layout.unflattened(self._outer_flat)

    def _begin(self) -> None:
        self._moments.begin()

    def _step(self, name: str, gradient: Tensor) -> Tensor:
        if name not in self._inner:
            return self._moments.step(name, gradient).mul_(self._rule.adamw_rate)
        return muon_step(self._inner[name], gradient, self._rule.momentum)

    @torch.no_grad()
    def extract(self, k: int, rate: float) -> Sent:
        for name, offset in self._offset.items():
            add_outer(self._outer[name], offset, self._rule.outer_momentum)
        return super().extract(k, rate)

    def _kept(self) -> dict[str, Tensor]:
        return self._moments.tensors() | {"inner": self._inner_flat, "outer": self._outer_flat}


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with the same singular vectors, whose singular values are near 1, as a new tensor; 0 for 0. Of several
    matrices [n, rows, columns], it is that of each."""
    a, b, c = COEFFICIENTS
    add_product = torch.addmm if matrix.dim() == 2 else torch.baddbmm
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + EPSILON)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = add_product(x, add_product(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).contiguous()


def add_outer(outer: Tensor, offset: Tensor, decay: float) -> None:
    """Add a node's difference, the negative of `offset`, to its outer momentum, and Nesterov's step to the offset."""
    outer.mul_(decay).sub_(offset)
    offset.sub_(outer, alpha=decay)


def muon_step(momentum: Tensor, gradient: Tensor, decay: float) -> Tensor:
    """Add the gradient of a matrix to its momentum, and return the step at η = 1, as a new tensor. Several matrices [n,
    rows, columns] take a step each."""
    momentum.mul_(decay).add_(gradient)
    step = orthogonal(torch.add(gradient, momentum, alpha=decay))
    return step.mul_(ADAMW_STEP * math.sqrt(max(gradient.shape[-2:])))
