"""The baseline is DeMo as published, operation for operation, and agrees with the paper's algorithm."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.compression.published import PublishedMomentum

BETA, K, RATE, NODES = 0.9, 32, 1e-2, 4


def gradient_of(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class PaperDeMo:
    """The paper's algorithm 1 for one node and one tensor, written as simply as possible (arXiv 2411.19870).

    Each chunk of 64 (×64) is transformed by the cosine sum, the k largest coefficients are removed from the momentum,
    and the parameters step by the sign of what was removed.
    """

    def __init__(self, theta: torch.Tensor, beta: float, k: int, rate: float) -> None:
        self.theta, self.momentum = theta.clone(), torch.zeros_like(theta)
        self.beta, self.k, self.rate = beta, k, rate
        self.basis = [
            [math.sqrt((1 if f == 0 else 2) / 64) * math.cos(math.pi * (2 * p + 1) * f / 128) for p in range(64)]
            for f in range(64)
        ]

    def step(self, gradient: torch.Tensor) -> None:
        self.momentum = self.beta * self.momentum + self.rate * gradient
        extracted = torch.zeros_like(self.momentum)
        b = torch.tensor(self.basis)
        if self.momentum.dim() == 1:
            for start in range(0, len(self.momentum), 64):
                coefficients = b @ self.momentum[start : start + 64]
                extracted[start : start + 64] = b.T @ self.largest(coefficients)
        else:
            for row in range(0, self.momentum.shape[0], 64):
                for column in range(0, self.momentum.shape[1], 64):
                    chunk = self.momentum[row : row + 64, column : column + 64]
                    part = b.T @ self.largest(b @ chunk @ b.T) @ b
                    extracted[row : row + 64, column : column + 64] = part
        self.momentum = self.momentum - extracted
        self.theta = self.theta - self.rate * torch.sign(extracted)

    def largest(self, coefficients: torch.Tensor) -> torch.Tensor:
        flat = coefficients.flatten().tolist()
        selected = sorted(range(len(flat)), key=lambda position: -abs(flat[position]))[: self.k]
        out = torch.zeros(len(flat))
        out[selected] = coefficients.flatten()[selected]
        return out.view(coefficients.shape)


class PublishedOperations:
    """One node's step for one tensor, with the operations of the published code in their order, including its einsums.

    The sides of the tensor must be multiples of 64.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.delta = shape, torch.zeros(shape)
        eye = torch.tensor(PaperDeMo(self.delta, BETA, K, RATE).basis)
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


@pytest.mark.parametrize("shape", [(128, 64), (192,)])
def test_one_node_follows_the_algorithm_of_the_paper(shape: tuple[int, ...]) -> None:
    """Six steps give the same parameters and the same momentum."""
    theta = gradient_of(shape, 1)
    paper = PaperDeMo(theta, BETA, K, RATE)
    published = PublishedMomentum({"w": shape}, beta=BETA, k=K)
    for seed in range(6):
        before, gradient = paper.theta, gradient_of(shape, 10 + seed)
        paper.step(gradient)
        published.accumulate({"w": gradient}, RATE)
        step = published.step_of([published.extract()])["w"]
        assert torch.allclose(published.delta["w"], paper.momentum, atol=1e-6)
        ours = before - RATE * step
        assert (ours == paper.theta).float().mean() > 0.999
