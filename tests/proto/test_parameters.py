"""Tests of shards: together they have the fingerprint of the whole, and the same bits after an update."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import SHAPES, random_sized_votes, random_votes
from thinwire_proto.contract import DemoSpec, Magnitude, Parameter
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.aggregation import SizedMerger
from thinwire_proto.exact.mix64 import MASK
from thinwire_proto.exact.parameters import Parameters, load_parameters
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, Merged, Signs, merge
from thinwire_proto.wire.codec import decode_update
from thinwire_proto.wire.sign_form import encode_smaller

RATE, DECAY = float(np.float32(3e-3)), float(np.float32(1 - 3e-5))

size = st.integers(1, 200)
shape = st.one_of(st.tuples(size), st.tuples(size, size), st.tuples(st.integers(1, 70), st.integers(1, 3), size))


def parameters_of(shapes: list[tuple[int, ...]], seed: int = 0) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    layout = TileLayout([Parameter(name=f"t{number}", shape=one) for number, one in enumerate(shapes)])
    return Parameters(layout, {t.name: torch.randn(t.shape, generator=generator) for t in layout.tensors})


def split(tiles: int, cuts: set[int]) -> list[range]:
    edges = sorted({0, tiles, *(cut % tiles for cut in cuts)})
    return [range(start, stop) for start, stop in pairwise(edges)]


@given(st.lists(shape, min_size=1, max_size=5), st.sets(st.integers(0, 1000), max_size=6), st.integers(0, MASK))
@settings(max_examples=60, deadline=None)
def test_fingerprints_of_shards_add_up_to_the_fingerprint_of_the_whole(
    shapes: list[tuple[int, ...]], cuts: set[int], nonce: int
) -> None:
    whole = parameters_of(shapes)
    shards = [whole.shard(tiles) for tiles in split(whole.layout.tiles, cuts)]
    assert sum(shard.fingerprint(nonce) for shard in shards) & MASK == whole.fingerprint(nonce)
    assert sum(shard.clone().fingerprint(nonce) for shard in shards) & MASK == whole.fingerprint(nonce)
    assert sum(tensor.numel() for shard in shards for tensor in shard.tensors.values()) == whole.layout.parameters


def update_of(layout: TileLayout, magnitude: Magnitude, levels: int = 0) -> Merged | Levels:
    votes_of = random_sized_votes if magnitude == "tile" else random_votes
    votes = [(votes_of(layout, 9, seed), seed + 1) for seed in range(3)]
    if magnitude != "tile":
        return merge(votes, layout.components)
    merger = SizedMerger(layout, 1.0, levels=levels)
    for one, weight in votes:
        merger.add(one, weight)
    return merger.merged()


def signs_of(layout: TileLayout) -> Signs:
    demo = DemoSpec(magnitude="sign", update_topk=0)
    merged = merge([(random_votes(layout, 4096, 1), 1)], layout.components)
    body, _ = encode_smaller(Update(5, RATE, DECAY, merged), layout, demo)
    signs = decode_update(body, layout, "sign").merged
    assert isinstance(signs, Signs)
    return signs


@pytest.mark.parametrize("form", ["sign", "clipped", "tile", "signs", "levels"])
@pytest.mark.parametrize("cuts", [set(), {1}, {2, 3, 7}, set(range(1, 100))])
def test_an_update_applied_to_shards_leaves_the_bits_of_the_whole(form: Magnitude | str, cuts: set[int]) -> None:
    whole = parameters_of([*SHAPES, (130, 200)])
    magnitude: Magnitude = "tile" if form in ("tile", "levels") else "clipped" if form == "clipped" else "sign"
    demo, layout = DemoSpec(magnitude=magnitude), whole.layout
    merged = signs_of(layout) if form == "signs" else update_of(layout, magnitude, 3 if form == "levels" else 0)
    shards = [whole.shard(tiles).clone() for tiles in split(layout.tiles, cuts)]
    before = whole.fingerprint(3)
    for one in (whole, *shards):
        one.apply(merged, demo, learning_rate=RATE, decay=DECAY, step=5)
    assert whole.fingerprint(3) != before
    assert sum(shard.fingerprint(3) for shard in shards) & MASK == whole.fingerprint(3)


def test_a_file_holds_a_whole_or_a_shard(tmp_path: Path) -> None:
    whole = parameters_of(list(SHAPES))
    for one, tiles in ((whole, None), (whole.shard(range(1, 4)), range(1, 4))):
        one.save(tmp_path / "f", {"step": "3"})
        again = load_parameters(whole.layout, tmp_path / "f", tiles)
        assert again.fingerprint(1) == one.fingerprint(1)
        assert again.tiles == one.tiles
    with pytest.raises(ReplicaError, match="parameter t0 is missing"):
        load_parameters(whole.layout, tmp_path / "f")
