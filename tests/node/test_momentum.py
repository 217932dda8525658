"""The sent part plus the remainder is the momentum, and both agree with a simple reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import SHAPES, shapes_contract
from thinwire_node.compression.momentum import Momentum
from thinwire_node.compression.sent import Sent
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.transform import forward, inverse

LAYOUT = TileLayout(shapes_contract().parameters)
RATE = 0.1


def spec_of(**fields: object) -> DemoSpec:
    return DemoSpec.model_validate({"precondition": "none"} | fields)


def gradients_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{number}": torch.randn(shape, generator=generator) for number, shape in enumerate(SHAPES)}


def tiles_of(flat: torch.Tensor) -> list[torch.Tensor]:
    """[64, 64] or [64] each, as views of a flat buffer in tile space."""
    return [*LAYOUT.matrices(flat), *LAYOUT.vectors(flat)]


def flat_buffer(sent: Sent) -> torch.Tensor:
    """The sent part, as a flat buffer in tile space."""
    flat = torch.zeros(LAYOUT.components)
    flat[sent.components] = sent.values
    return flat


class ReferenceMomentum:
    """The same algorithm as simply as possible: the momentum itself instead of its coefficients, tile by tile, not in
    position."""

    def __init__(self, spec: DemoSpec) -> None:
        self.spec = spec
        self.tiles = [torch.zeros(tile.shape).double() for tile in tiles_of(torch.zeros(LAYOUT.components))]
        self.second = {f"t{number}": torch.zeros(shape).double() for number, shape in enumerate(SHAPES)}
        self.rounds = 0

    def accumulate(self, sums: Mapping[str, torch.Tensor], rate: float, samples: int) -> None:
        self.rounds += 1
        gradients = torch.zeros(LAYOUT.components).double()
        for tensor in LAYOUT.tensors:
            gradient = sums[tensor.name].double() / samples
            if self.spec.precondition == "adam":
                beta = self.spec.precondition_beta
                self.second[tensor.name] = beta * self.second[tensor.name] + (1 - beta) * gradient**2
                gradient = gradient / ((self.second[tensor.name] / (1 - beta**self.rounds)).sqrt() + 1e-8)
            LAYOUT.add_into(gradients, tensor, gradient)
        self.tiles = [self.spec.beta * m + rate * g for m, g in zip(self.tiles, tiles_of(gradients), strict=True)]

    def extract(self, k: int) -> list[tuple[int, float]]:
        """Extract pairs (component, value), ascending."""
        sent, first = [], 0
        for number, tile in enumerate(self.tiles):
            flat = self.transform(tile, forward).flatten().tolist()
            selected = sorted(sorted(range(len(flat)), key=lambda position: -abs(flat[position]))[:k])
            selected = [position for position in selected if flat[position]]
            mean = sum(abs(flat[position]) for position in selected) / max(1, len(selected))
            extracted = torch.zeros(len(flat)).double()
            for position in selected:
                extracted[position] = mean if flat[position] > 0 else -mean
                sent.append((first + position, float(extracted[position])))
            self.tiles[number] = tile - self.spec.alpha * self.transform(extracted.view(tile.shape), inverse)
            first += len(flat)
        return sent

    def transform(self, tile: torch.Tensor, which: Any) -> torch.Tensor:
        found: torch.Tensor = which(tile[None].float(), self.spec.transform)[0].double()
        return found


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("k", "fields"),
    [
        (32, {}),
        (1, {"alpha": 0.2}),
        (150, {"precondition": "adam"}),
        (64, {"transform": "hadamard", "precondition": "adam"}),
        (700, {"beta": 0.9}),
        (4096, {"alpha": 0.5}),
    ],
)
def test_rounds_agree_with_the_reference(k: int, fields: dict[str, Any], together: bool) -> None:
    spec = spec_of(**fields)
    reference, momentum = ReferenceMomentum(spec), Momentum(LAYOUT, spec, "cpu")
    for one in (reference, momentum):  # Adam turns a first gradient into its sign, which would give many ties
        one.accumulate(gradients_of(9), RATE, 1)
    for seed in range(3):
        gradients = {name: 5 * gradient for name, gradient in gradients_of(seed).items()}
        reference.accumulate(gradients, RATE, 5)
        if together:
            sent = momentum.accumulate_and_extract(gradients, RATE, 5, k)
        else:
            momentum.accumulate(gradients, RATE, 5)
            sent = momentum.extract(k)
        components, values = zip(*reference.extract(k), strict=True)
        assert sent.components.tolist() == list(components)
        assert torch.allclose(sent.values, torch.tensor(values), rtol=1e-4, atol=1e-6)
        expected = [reference.transform(tile, forward).float().flatten() for tile in reference.tiles]
        assert torch.allclose(momentum.buffer, torch.cat(expected), atol=1e-5)


@given(
    st.integers(1, 4096),
    st.sampled_from(["sign", "clipped", "tile"]),
    st.sampled_from(["dct", "hadamard"]),
    st.sampled_from([0.2, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_sent_plus_remaining_is_the_momentum(k: int, magnitude: str, transform: str, alpha: float) -> None:
    momentum = Momentum(LAYOUT, spec_of(alpha=alpha, transform=transform, magnitude=magnitude), "cpu")
    momentum.accumulate(gradients_of(1), RATE)
    before = momentum.buffer.clone()
    sent = momentum.extract(k)
    assert torch.allclose(momentum.buffer + alpha * flat_buffer(sent), before, atol=1e-6)
    assert len(sent.components) <= LAYOUT.selected_max(k)


@pytest.mark.parametrize("transform", ["dct", "hadamard"])
def test_steps_are_the_inverse_of_the_components(transform: str) -> None:
    momentum = Momentum(LAYOUT, spec_of(transform=transform, magnitude="clipped"), "cpu")
    momentum.accumulate(gradients_of(2), 1.0)
    sent = momentum.extract(20)
    flat = flat_buffer(sent)
    expected = [inverse(part, transform).flatten(1) for part in (LAYOUT.matrices(flat), LAYOUT.vectors(flat))]
    steps = [(part / (1.25 * part.abs().mean(1, keepdim=True))).clamp(-1, 1).flatten() for part in expected]
    found: dict[bool, torch.Tensor] = {}
    momentum.decode_changes(lambda batch, step: found.update({batch.is_matrix: step.flatten().clone()}), sent, 0.5)
    assert torch.allclose(torch.cat([found[True], found[False]]), -0.5 * torch.cat(steps), atol=1e-5)
