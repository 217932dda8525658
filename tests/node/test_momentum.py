"""DeMo is the paper's algorithm, and what stays and what was sent make up the momentum."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import SHAPES, shapes_contract
from thinwire_node.momentum import Momentum, Values
from thinwire_proto.contract import DemoSpec
from thinwire_proto.tiles import TileLayout
from thinwire_proto.transform import forward, inverse

LAYOUT = TileLayout(shapes_contract().parameters)


def spec_of(**fields: object) -> DemoSpec:
    return DemoSpec.model_validate({"precondition": "none"} | fields)


def gradients_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{number}": torch.randn(shape, generator=generator) for number, shape in enumerate(SHAPES)}


def dense_inverse(components: torch.Tensor, values: torch.Tensor, transform: str = "dct") -> torch.Tensor:
    """What sent components stand for, as a flat buffer in tile space."""
    flat = torch.zeros(LAYOUT.components)
    flat[components] = values
    matrices, vectors = inverse(LAYOUT.matrices(flat), transform), inverse(LAYOUT.vectors(flat), transform)
    return torch.cat([matrices.flatten(), vectors.flatten()])


class PaperDeMo:
    """The paper's algorithm 1 for one node and one tensor, as a dumb reader would write it (arXiv 2411.19870).

    Each chunk of 64 (×64) is transformed by the cosine sum itself, the k largest coefficients are taken out of the
    momentum, and the parameters step by the sign of what was taken.
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
        taken = torch.zeros_like(self.momentum)
        b = torch.tensor(self.basis)
        if self.momentum.dim() == 1:
            for start in range(0, len(self.momentum), 64):
                coefficients = b @ self.momentum[start : start + 64]
                taken[start : start + 64] = b.T @ self.largest(coefficients)
        else:
            for row in range(0, self.momentum.shape[0], 64):
                for column in range(0, self.momentum.shape[1], 64):
                    chunk = self.momentum[row : row + 64, column : column + 64]
                    part = b.T @ self.largest(b @ chunk @ b.T) @ b
                    taken[row : row + 64, column : column + 64] = part
        self.momentum = self.momentum - taken
        self.theta = self.theta - self.rate * torch.sign(taken)

    def largest(self, coefficients: torch.Tensor) -> torch.Tensor:
        flat = coefficients.flatten().tolist()
        kept = sorted(range(len(flat)), key=lambda place: -abs(flat[place]))[: self.k]
        out = torch.zeros(len(flat))
        out[kept] = coefficients.flatten()[kept]
        return out.view(coefficients.shape)


@pytest.mark.parametrize("shape", [(128, 64), (192,)])
def test_float_values_and_one_node_equal_the_paper(shape: tuple[int, ...]) -> None:
    """Six steps, whole tiles (the paper pads nothing): the same parameters and the same momentum."""
    beta, k, rate = 0.9, 32, 1e-2
    layout = TileLayout([shapes_contract().parameters[0].model_copy(update={"name": "w", "shape": shape})])
    theta = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    paper, ours = PaperDeMo(theta, beta, k, rate), theta.clone()
    momentum = Momentum(layout, spec_of(beta=beta, k=k), "cpu", values="float")
    for seed in range(6):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(10 + seed))
        paper.step(gradient)
        momentum.accumulate({"w": gradient}, rate)
        sent = momentum.cut(k)
        flat = torch.zeros(layout.components)
        flat[sent.components] = sent.values
        tiles = layout.matrices(flat) if len(shape) == 2 else layout.vectors(flat)
        step = inverse(tiles, "dct")
        if len(shape) == 2:
            step = step.view(-1, 64)
        ours -= rate * torch.sign(step.view(shape))
        assert torch.allclose(momentum.buffer.view(shape), paper.momentum, atol=1e-6)
        # where the step is next to zero, two ways of summing may give it either sign
        clear = (step.view(shape).abs() > 1e-6) | (ours == paper.theta)
        assert clear.float().mean() > 0.999
        assert torch.equal(ours[clear], paper.theta[clear])
        ours = paper.theta.clone()


@given(
    st.integers(1, 4096),
    st.sampled_from(["vote", "float"]),
    st.sampled_from(["dct", "hadamard"]),
    st.sampled_from([0.2, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_what_stays_and_what_was_sent_make_up_the_momentum(
    k: int, values: Values, transform: str, alpha: float
) -> None:
    momentum = Momentum(LAYOUT, spec_of(alpha=alpha, transform=transform), "cpu", values)
    momentum.accumulate(gradients_of(1), 0.1)
    before = momentum.buffer.clone()
    sent = momentum.cut(k)
    taken = alpha * dense_inverse(sent.components, sent.values, transform)
    assert torch.allclose(momentum.buffer + taken, before, atol=1e-6)
    assert len(sent.components) <= LAYOUT.kept_max(k)


@given(st.integers(1, 64), st.integers(0, 3))
@settings(max_examples=10, deadline=None)
def test_put_back_undoes_a_cut_decayed_for_the_cuts_between(k: int, between: int) -> None:
    spec = spec_of(beta=0.5, alpha=0.7)
    momentum = Momentum(LAYOUT, spec, "cpu")
    momentum.accumulate(gradients_of(1), 0.1)
    before = momentum.buffer.clone()
    sent = momentum.cut(k)
    zero = {name: torch.zeros_like(gradient) for name, gradient in gradients_of(1).items()}
    for _ in range(between):
        momentum.accumulate(zero, 0.1)
    momentum.put_back(sent)
    assert torch.allclose(momentum.buffer, before * 0.5**between, atol=1e-6)


def test_the_largest_of_each_tile_are_kept_in_order() -> None:
    momentum = Momentum(LAYOUT, spec_of(), "cpu", "float")
    momentum.accumulate(gradients_of(2), 1.0)
    coefficients = forward(LAYOUT.matrices(momentum.buffer), "dct").flatten(1).abs()
    sent = momentum.cut(32)
    components = sent.components.numpy()
    assert (components[1:] > components[:-1]).all()
    for tile in range(LAYOUT.matrix_tiles):
        mine = components[(components >= tile * 4096) & (components < (tile + 1) * 4096)] - tile * 4096
        assert set(mine.tolist()) == set(coefficients[tile].topk(32).indices.tolist())


def test_votes_count_as_the_mean_magnitude_of_their_tile() -> None:
    plain, voting = Momentum(LAYOUT, spec_of(), "cpu", "float"), Momentum(LAYOUT, spec_of(), "cpu", "vote")
    for momentum in (plain, voting):
        momentum.accumulate(gradients_of(3), 1.0)
    real, vote = plain.cut(16), voting.cut(16)
    assert torch.equal(real.components, vote.components)
    assert torch.equal(real.values > 0, vote.values > 0)
    assert vote.values[:16].abs().max() == vote.values[:16].abs().min()
    assert vote.values[:16].abs().mean() == pytest.approx(real.values[:16].abs().mean().item(), rel=1e-5)


def test_zeros_are_never_sent() -> None:
    momentum = Momentum(LAYOUT, spec_of(), "cpu")
    assert len(momentum.cut(32).components) == 0
    gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients_of(0).items()}
    gradients["t0"][:64, :64] = 1.0  # a constant tile has one coefficient that is not (nearly) zero
    momentum.accumulate(gradients, 1.0)
    sent = momentum.cut(1)
    assert sent.components.tolist() == [0]
    assert len(sent.votes()) == 1
