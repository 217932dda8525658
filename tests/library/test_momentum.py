"""The sent part plus the remainder is the momentum, and what an update dropped comes back once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import SHAPES, random_votes, shapes_contract
from thinwire.compression.momentum import Momentum
from thinwire.compression.residual import Awaited, Pending, dropped_part
from thinwire.compression.sent import Sent
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import TopkSelection
from thinwire_proto.exact.transform import forward, inverse
from thinwire_proto.exact.votes import Merged, merge

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
            self.tiles[number] = tile - self.transform(extracted.view(tile.shape), inverse)
            first += len(flat)
        return sent

    def transform(self, tile: torch.Tensor, which: Any) -> torch.Tensor:
        found: torch.Tensor = which(tile[None].float())[0].double()
        return found


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("k", "fields"),
    [
        (32, {}),
        (1, {}),
        (150, {"precondition": "adam"}),
        (64, {"precondition": "adam"}),
        (700, {"beta": 0.9}),
        (4096, {}),
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


@given(st.integers(1, 4096), st.sampled_from(["sign", "clipped", "tile"]))
@settings(max_examples=25, deadline=None)
def test_sent_plus_remaining_is_the_momentum(k: int, magnitude: str) -> None:
    momentum = Momentum(LAYOUT, spec_of(magnitude=magnitude), "cpu")
    momentum.accumulate(gradients_of(1), RATE)
    before = momentum.buffer.clone()
    sent = momentum.extract(k)
    assert torch.allclose(momentum.buffer + flat_buffer(sent), before, atol=1e-6)
    assert len(sent.components) <= LAYOUT.selected_max(k)


@given(st.integers(1, 64), st.integers(0, 3))
@settings(max_examples=10, deadline=None)
def test_put_back_undoes_an_extraction_with_decay(k: int, between: int) -> None:
    spec = spec_of(beta=0.5)
    momentum = Momentum(LAYOUT, spec, "cpu")
    momentum.accumulate(gradients_of(1), 0.1)
    before = momentum.buffer.clone()
    sent = momentum.extract(k)
    zero = {name: torch.zeros_like(gradient) for name, gradient in gradients_of(1).items()}
    for _ in range(between):
        momentum.accumulate(zero, 0.1)
    momentum.put_back(sent)
    assert torch.allclose(momentum.buffer, before * 0.5**between, atol=1e-6)


def test_steps_are_the_inverse_of_the_components() -> None:
    momentum = Momentum(LAYOUT, spec_of(magnitude="clipped"), "cpu")
    momentum.accumulate(gradients_of(2), 1.0)
    sent = momentum.extract(20)
    flat = flat_buffer(sent)
    expected = [inverse(part).flatten(1) for part in (LAYOUT.matrices(flat), LAYOUT.vectors(flat))]
    steps = [(part / (1.25 * part.abs().mean(1, keepdim=True))).clamp(-1, 1).flatten() for part in expected]
    found: dict[bool, torch.Tensor] = {}
    momentum.decode_changes(lambda batch, step: found.update({batch.is_matrix: step.flatten().clone()}), sent, 0.5)
    assert torch.allclose(torch.cat([found[True], found[False]]), -0.5 * torch.cat(steps), atol=1e-5)


def test_zeros_are_never_sent() -> None:
    momentum = Momentum(LAYOUT, spec_of(), "cpu")
    assert len(momentum.extract(32).components) == 0
    gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients_of(0).items()}
    gradients["t0"][:64, :64] = 1.0  # a constant tile has one coefficient that is not nearly zero
    momentum.accumulate(gradients, 1.0)
    sent = momentum.extract(1)
    assert sent.components.tolist() == [0]
    assert len(sent.votes()) == 1


K = 16


def extraction() -> tuple[Momentum, Sent]:
    spec = DemoSpec(precondition="none", beta=0.5)
    momentum = Momentum(LAYOUT, spec, "cpu")
    generator = torch.Generator().manual_seed(1)
    momentum.accumulate({f"t{n}": torch.randn(shape, generator=generator) for n, shape in enumerate(SHAPES)}, 0.1)
    return momentum, momentum.extract(K)


@given(st.integers(1, 24), st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_exactly_the_dropped_components_are_put_back(update_topk: int, extractions_between: int) -> None:
    momentum, sent = extraction()
    other = random_votes(LAYOUT, K, 5)
    merged = merge([(sent.votes(), 1), (other, 1)], LAYOUT.components, TopkSelection(LAYOUT, update_topk, 3))
    zero = {f"t{number}": torch.zeros(shape) for number, shape in enumerate(SHAPES)}
    for _ in range(extractions_between):
        momentum.accumulate(zero, 0.1)
    before = momentum.buffer.clone()
    awaited = Awaited(update_topk)
    awaited.add(Pending(b"h", sent, 3))
    assert list(awaited.applied(2, [b"of another round"], merged, LAYOUT)) == []
    for part in awaited.applied(3, [b"h"], merged, LAYOUT):
        momentum.put_back(part)
    assert list(awaited.applied(3, [b"h"], merged, LAYOUT)) == []

    held = set(merged.components.tolist())
    in_tile = np.bincount(LAYOUT.tile_of(merged.components), minlength=LAYOUT.tiles)
    expected = torch.zeros_like(before)
    for component, value in zip(sent.components.tolist(), sent.values.tolist(), strict=True):
        tile = int(LAYOUT.tile_of(np.array([component]))[0])
        if component not in held and in_tile[tile] == update_topk:
            expected[component] = 0.5**extractions_between * value
    assert torch.allclose(momentum.buffer - before, expected, atol=1e-6)
    assert update_topk > K or expected.any()


def test_each_update_belongs_to_its_round_and_none_without_update_topk() -> None:
    first, second = (Sent(torch.tensor([n]), torch.ones(1), n) for n in (1, 2))
    merged = Merged(np.array([7]), np.ones(1, np.int16))  # the tile is full, with another node's component
    awaited = Awaited(1)
    awaited.add(Pending(b"1", first, 10))
    awaited.add(Pending(b"2", second, 11))
    kept = awaited.kept()
    assert [(one.hash, one.step, one.sent.extraction) for one in kept] == [(b"1", 10, -1), (b"2", 11, 0)]
    for life in (awaited, Awaited(1, kept)):
        assert [part.components.tolist() for part in life.applied(10, [b"1"], merged, LAYOUT)] == [[1]]
        assert [part.components.tolist() for part in life.applied(11, [b"2", b"1"], merged, LAYOUT)] == [[2]]
    awaited.add(Pending(b"3", first, 12))
    assert list(awaited.applied(12, [b"somebody's"], merged, LAYOUT)) == []  # not counted
    assert awaited.kept() == ()
    awaited.add(Pending(b"4", first, 13))
    awaited.clear()
    assert list(awaited.applied(13, [b"4"], merged, LAYOUT)) == []
    plain = Awaited(0)
    plain.add(Pending(b"5", first, 14))
    assert plain.kept() == ()


def test_an_update_with_all_components_drops_nothing() -> None:
    _, sent = extraction()
    merged = merge([(sent.votes(), 1)], LAYOUT.components)
    assert dropped_part(sent, merged, LAYOUT, K) is None
