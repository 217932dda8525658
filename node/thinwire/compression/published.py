"""DeMo as published (arXiv 2411.19870, and its reference code), operation for operation, in float.

This is the baseline for thinwire's own variant. A tensor is split into chunks whose edges divide it: the largest
divisors not above `chunk`. The values of the selected coefficients travel as float32 with an int64 index. If several
nodes send the same coefficient, its value is the mean, and the step is the sign of the result. Replicas that sum these
floats in different orders drift apart, which is why swarms send votes instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

BYTES_A_COMPONENT = 12  # an int64 and a float32


@dataclass(frozen=True)
class ChunkCoefficients:
    """The selected coefficients of a tensor. indices: int64 [chunks, k], within the chunk. values: float32
    [chunks, k]."""

    indices: Tensor
    values: Tensor


class PublishedMomentum:
    """The momentum ("delta") of one node.

    shapes: of the parameters, by name. A parameter with more than two dimensions counts as a matrix (first, the rest);
    the published code knows only one and two dimensions. chunk: the desired edge."""

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        *,
        beta: float = 0.999,
        k: int = 32,
        chunk: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._chunks = {name: _chunks_of(shape, chunk) for name, shape in self._shapes.items()}
        self._beta, self._k = beta, k
        self.delta = {
            name: torch.zeros(shape, dtype=torch.float32, device=device) for name, shape in self._shapes.items()
        }

    @torch.no_grad()
    def accumulate(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        """m ← β·m + η·g."""
        for name, delta in self.delta.items():
            delta.mul_(self._beta).add_(gradients[name], alpha=learning_rate)

    @torch.no_grad()
    def extract(self) -> dict[str, ChunkCoefficients]:
        """Extract the k largest coefficients of each chunk from the momentum."""
        sent = {}
        for name, delta in self.delta.items():
            flat = self._encode(name, delta)
            indices = flat.abs().topk(min(self._k, flat.shape[1]), dim=1, largest=True, sorted=False).indices
            sent[name] = ChunkCoefficients(indices, flat.gather(1, indices))
            delta.sub_(self._own(name, sent[name]))
        return sent

    @torch.no_grad()
    def put_back(self, sent: Mapping[str, ChunkCoefficients]) -> None:
        for name, delta in self.delta.items():
            delta.add_(self._own(name, sent[name]))

    @torch.no_grad()
    def step_of(self, contributions: Sequence[Mapping[str, ChunkCoefficients]]) -> dict[str, Tensor]:
        """The sign of the step from all nodes' coefficients, by name: −1, 0 or 1, float32."""
        steps = {}
        for name, delta in self.delta.items():
            indices = torch.cat([sent[name].indices for sent in contributions], 1)
            values = torch.cat([sent[name].values for sent in contributions], 1)
            flat = torch.zeros(indices.shape[0], self.size(name), dtype=torch.float32, device=delta.device)
            flat.scatter_reduce_(1, indices, values, reduce="mean", include_self=False)
            steps[name] = self._decode(name, flat).sign_()
        return steps

    def size(self, name: str) -> int:
        """Number of coefficients in a chunk of the tensor."""
        return prod(self._chunks[name])

    def selected_shape(self, name: str) -> tuple[int, int]:
        """Shape (chunks, k) of the selected coefficients of the tensor."""
        return prod(self._shapes[name]) // self.size(name), min(self._k, self.size(name))

    def _own(self, name: str, selected: ChunkCoefficients) -> Tensor:
        """The tensor of coefficients of one node."""
        flat = torch.zeros(
            selected.indices.shape[0], self.size(name), dtype=torch.float32, device=selected.values.device
        )
        flat.scatter_reduce_(1, selected.indices, selected.values, reduce="mean", include_self=False)
        return self._decode(name, flat)

    def _encode(self, name: str, values: Tensor) -> Tensor:
        """The coefficients [chunks, edge · edge] of a tensor."""
        rows, columns = self._chunks[name]
        grid = values.reshape(_rows(values.shape) // rows, rows, -1, columns)
        first, second = (_basis(edge, values.device) for edge in (rows, columns))
        return torch.einsum("yhxw,kh,lw->yxkl", grid, first, second).reshape(-1, rows * columns)

    def _decode(self, name: str, flat: Tensor) -> Tensor:
        """The tensor of coefficients [chunks, edge · edge], in the parameter's shape."""
        rows, columns = self._chunks[name]
        shape = self._shapes[name]
        grid = flat.view(_rows(shape) // rows, -1, rows, columns)
        first, second = (_basis(edge, flat.device) for edge in (rows, columns))
        return torch.einsum("yxkl,kh,lw->yhxw", grid, first, second).reshape(shape)


def components(sent: Mapping[str, ChunkCoefficients]) -> int:
    return sum(selected.indices.numel() for selected in sent.values())


def _rows(shape: Sequence[int]) -> int:
    """Rows of the parameter as a matrix; a vector or a scalar is one row."""
    return shape[0] if len(shape) > 1 else 1


def _chunks_of(shape: Sequence[int], chunk: int) -> tuple[int, int]:
    """Edges (rows, columns) of the chunks of a tensor."""
    rows = _rows(shape)
    return _divisor(rows, chunk), _divisor(prod(shape) // rows, chunk)


def _divisor(size: int, at_most: int) -> int:
    """The largest divisor of `size` that is not above `at_most`."""
    return next(edge for edge in range(min(size, at_most), 0, -1) if size % edge == 0)


@lru_cache(maxsize=32)
def _basis(edge: int, device: torch.device) -> Tensor:
    """The orthonormal DCT-II basis, [edge, edge] float32: rows are frequencies, columns are positions."""
    position = torch.arange(edge, dtype=torch.float64)
    basis = torch.cos(math.pi * (2 * position + 1) * position[:, None] / (2 * edge)) * math.sqrt(2 / edge)
    basis[0] /= math.sqrt(2)
    return basis.to(device, torch.float32)
