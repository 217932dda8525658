"""The baseline is DeMo as published, operation for operation (arXiv 2411.19870)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.compression.published import PublishedMomentum

BETA, K, RATE, NODES = 0.9, 32, 1e-2, 4


def gradient_of(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class PublishedOperations:
    """One node's step for one tensor, with the operations of the published code in their order, including its einsums.

    The sides of the tensor must be multiples of 64.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.delta = shape, torch.zeros(shape)
        eye = torch.tensor(
            [
                [math.sqrt((1 if f == 0 else 2) / 64) * math.cos(math.pi * (2 * p + 1) * f / 128) for p in range(64)]
                for f in range(64)
            ]
        )
        self.forward, self.backward = eye.T.contiguous(), eye  # [position, frequency] and [frequency, position]

    def encode(self, x: Tensor) -> Tensor:
        if x.dim() == 1:
            return torch.einsum("...ij, jb -> ...ib", x.view(-1, 64), self.forward)
        grid = x.view(x.shape[0] // 64, 64, -1, 64)
        return torch.einsum("...ijkl, jb, ld -> ...ikbd", grid, self.forward, self.forward)

    def decode(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return torch.einsum("...ij, jb -> ...ib", x, self.backward).reshape(self.shape)
        return torch.einsum("...ijkl, kb, ld -> ...ibjd", x, self.backward, self.backward).reshape(self.shape)

    def compress(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(2) if x.dim() > 2 else x
        index = torch.topk(x.abs(), k=K, dim=-1, largest=True, sorted=False).indices
        return index, torch.gather(x, dim=-1, index=index)

    def decompress(self, like: Tensor, index: Tensor, value: Tensor) -> Tensor:
        x = torch.zeros(like.shape)
        flat = x.flatten(2) if x.dim() > 2 else x
        flat.scatter_reduce_(dim=-1, index=index, src=value, reduce="mean", include_self=False)
        return x

    def send(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        self.delta.mul_(BETA)
        self.delta.add_(gradient, alpha=RATE)
        encoded = self.encode(self.delta)
        index, value = self.compress(encoded)
        self.delta.sub_(self.decode(self.decompress(encoded, index, value)))
        return index, value

    def step_of(self, sent: list[tuple[Tensor, Tensor]]) -> Tensor:
        index, value = torch.cat([one[0] for one in sent], -1), torch.cat([one[1] for one in sent], -1)
        return self.decode(self.decompress(self.encode(self.delta), index, value)).sign_()


@pytest.mark.parametrize("shape", [(128, 64), (64, 256), (192,)])
def test_baseline_equals_the_published_operations(shape: tuple[int, ...]) -> None:
    published = [PublishedMomentum({"w": shape}, beta=BETA, k=K) for _ in range(NODES)]
    literal = [PublishedOperations(shape) for _ in range(NODES)]
    for seed in range(3):
        sent, theirs = [], []
        for number in range(NODES):
            gradient = gradient_of(shape, 100 * seed + number)
            published[number].accumulate({"w": gradient}, RATE)
            sent.append(published[number].extract())
            index, value = literal[number].send(gradient)
            theirs.append((index, value))
            order, mine = index.flatten(0, -2).sort(-1), sent[-1]["w"].indices.sort(-1)
            assert torch.equal(order.values, mine.values)
            values = sent[-1]["w"].values.gather(-1, mine.indices)
            assert torch.allclose(value.flatten(0, -2).gather(-1, order.indices), values, atol=1e-6)
            assert torch.allclose(literal[number].delta, published[number].delta["w"], atol=1e-6)
        step, other = published[0].step_of(sent)["w"], literal[0].step_of(theirs)
        assert step.abs().max() == 1
        # where the step is nearly zero, the order of summation may decide its sign
        assert (step == other).float().mean() > 0.999
