"""Property tests: what ranks with ranges of tiles do, joined, is what one process does with the whole tile space."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.small import random_sized_votes, random_votes
from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire.compression.tile_range import joined, moved, tile_ranges
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.aggregation import SizedMerger
from thinwire_proto.exact.apply import apply_votes
from thinwire_proto.exact.fingerprint import fingerprint, fingerprint_of_pieces
from thinwire_proto.exact.mix64 import MASK
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import Levels, Merged, Merger, Merges
from thinwire_proto.wire.codec import encode_votes

CPU = torch.device("cpu")
RANKS = (2, 3, 4, 40)
"""With 40, some ranks have no tile."""
SEEDS = 3
SPECS: tuple[dict[str, Any], ...] = (
    {"k": 4, "beta": 0.9},
    {"k": 4, "beta": 0.9, "precondition": "adam"},
    {"k": 8, "beta": 0.9, "magnitude": "clipped", "precondition": "adam"},
    {"k": 8, "beta": 0.9, "magnitude": "tile"},
    {"k": 4096, "beta": 0.9, "magnitude": "tile"},
    {"k": 4096, "beta": 0.9, "magnitude": "tile", "update_levels": 7, "vote_levels": 1},
)


def layout_drawn(draw: random.Random) -> TileLayout:
    """Vectors, matrices and convolutions, few of which have rows that are a multiple of 64, and scalars."""
    shapes: list[tuple[int, ...]] = [(), (1,)]
    while len(shapes) < 8:
        sizes = [draw.choice([1, 2, 3, 7, 63, 64, 65, 100, 128, 150, 200]) for _ in range(draw.randint(1, 4))]
        if prod(sizes) < 40_000:
            shapes.append(tuple(sizes))
    draw.shuffle(shapes)
    return TileLayout([Parameter(name=f"p{number}", shape=shape) for number, shape in enumerate(shapes)])


def tensors_of(layout: TileLayout, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {tensor.name: torch.randn(tensor.shape, generator=generator) for tensor in layout.tensors}


def merged_of(layout: TileLayout, demo: DemoSpec, seed: int) -> Merged | Levels:
    """The votes of three nodes, merged."""
    is_sized = demo.magnitude == "tile"
    merger: Merges = Merger(layout.components, None)
    if is_sized:
        merger = SizedMerger(layout, 0.5, None, demo.update_levels, demo.largest_vote)
    for number in range(3):
        votes = (random_sized_votes if is_sized else random_votes)(layout, demo.k, 10 * seed + number)
        merger.add(votes, number + 1)
    return merger.merged()


def same(a: Sent, b: Sent) -> bool:
    return set(a.tensors()) == set(b.tensors()) and all(
        torch.equal(tensor, b.tensors()[name]) for name, tensor in a.tensors().items()
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("keys", SPECS, ids=lambda keys: "-".join(map(str, keys.values())))
def test_ranks_extract_put_back_and_keep_what_one_process_does(keys: dict[str, Any], ranks: int) -> None:
    spec = DemoSpec(**keys)
    for seed in range(SEEDS):
        layout = layout_drawn(random.Random(seed))
        ranges = tile_ranges(layout, ranks)
        assert [tile for of_rank in ranges for tile in of_rank.tiles] == list(range(layout.tiles))
        whole = Momentum(layout, spec, CPU)
        parts = [Momentum(of_rank.layout, spec, CPU) for of_rank in ranges]
        for step in range(3):
            gradients = tensors_of(layout, 100 * seed + step)
            expected = whole.accumulate_and_extract(gradients, 0.01, 3, spec.k)
            found = []
            for of_rank, part in zip(ranges, parts, strict=True):
                own = of_rank.layout.unflattened(of_rank.cut(gradients))
                found.append(moved(part.accumulate_and_extract(own, 0.01, 3, spec.k), of_rank))
            sent = joined(found)
            assert same(sent, expected)
            assert encode_votes(sent.votes(), layout) == encode_votes(expected.votes(), layout)
            if step == 1:  # the first one was not counted
                whole.put_back(expected)
                for of_rank, part in zip(ranges, parts, strict=True):
                    part.put_back(of_rank.of_sent(sent))
        assert torch.equal(torch.cat([part.buffer for part in parts]), whole.buffer)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    "demo",
    [
        DemoSpec(k=4),
        DemoSpec(k=4, magnitude="clipped"),
        DemoSpec(k=8, magnitude="tile"),
        DemoSpec(k=8, magnitude="tile", update_levels=7),
    ],
    ids=["sign", "clipped", "tile", "levels"],
)
def test_ranks_apply_what_one_process_does(demo: DemoSpec, ranks: int) -> None:
    for seed in range(SEEDS):
        layout = layout_drawn(random.Random(seed))
        merged = merged_of(layout, demo, seed)
        expected, start = tensors_of(layout, seed), tensors_of(layout, seed)
        settings: dict[str, Any] = {"learning_rate": float(np.float32(0.01)), "decay": 0.5, "step": seed}
        apply_votes(expected, merged, layout, demo, **settings)
        found = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        for of_rank in tile_ranges(layout, ranks):
            flat = of_rank.cut(start)
            own = of_rank.layout
            apply_votes(own.unflattened(flat), of_rank.of_merged(merged), own, demo, **settings)
            of_rank.put(flat, found)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_fingerprints_of_the_ranges_add_up(ranks: int, seed: int) -> None:
    layout = layout_drawn(random.Random(seed))
    tensors, total = tensors_of(layout, seed), 0
    for of_rank in tile_ranges(layout, ranks):
        total += fingerprint_of_pieces(of_rank.pieces(of_rank.cut(tensors)), 9)
    assert total & MASK == fingerprint(tensors.values(), 9)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_undivided_matrix_is_in_one_range(ranks: int, seed: int) -> None:
    layout = layout_drawn(random.Random(seed))
    undivided = {tensor.name for tensor in layout.tensors if len(tensor.shape) == 2}
    ranges = tile_ranges(layout, ranks, undivided)
    assert [tile for of_rank in ranges for tile in of_rank.tiles] == list(range(layout.tiles))
    for name in undivided:
        (pieces,) = filter(None, (of_rank.among({name}) for of_rank in ranges))
        ((_, part),) = pieces
        assert part.is_whole
    tensors = tensors_of(layout, seed)
    some = {name: tensors[name] for name in undivided}
    copies = {name: torch.zeros_like(tensor) for name, tensor in some.items()}
    for of_rank in ranges:
        of_rank.put(of_rank.cut(some), copies)
    assert all(torch.equal(copies[name], some[name]) for name in some)
