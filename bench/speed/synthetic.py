"""Synthetic votes and contracts: uniform components, the worst case for a codec."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import Contract, CorpusSpec, DemoSpec, ModelSpec, Parameter, RunSpec
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Votes
from thinwire_proto.models import build_decoder, manifest

MATRIX = (Parameter(name="w", shape=(2560, 4096)),)
"""10.5M parameters, all in tiles of 4,096."""


def model_parameters(spec: ModelSpec) -> tuple[Parameter, ...]:
    return manifest(build_decoder(spec, "meta"))


def contract_of(parameters: tuple[Parameter, ...], demo: DemoSpec) -> Contract:
    data = CorpusSpec(corpus_hash="0" * 64, corpus_bytes=1 << 20, train_bytes=1 << 20)
    sections = {name: getattr(RunSpec(), name) for name in RunSpec.model_fields} | {"data": data, "demo": demo}
    return Contract(**sections, parameters=parameters)


def uniform_votes(layout: TileLayout, k: int, seed: int) -> Votes:
    """k components of each tile (or all, if the tile has no more), all choices equally likely."""
    rng = np.random.default_rng(seed)
    matrices = _choose(rng, layout.matrix_tiles, MATRIX_COMPONENTS, k)
    vectors = layout.matrix_components + _choose(rng, layout.vector_tiles, VECTOR_COMPONENTS, k)
    components = np.concatenate([matrices, vectors])
    return Votes(components, rng.random(len(components)) < 0.5)


def _choose(rng: np.random.Generator, tiles: int, size: int, k: int) -> npt.NDArray[np.int64]:
    """k of `size` in each of `tiles` tiles, flat and ascending."""
    selected = min(k, size)
    if selected * selected < size:
        components = np.sort(rng.integers(0, size, (tiles, selected)), axis=1)
        while len(again := np.flatnonzero((np.diff(components, axis=1) == 0).any(axis=1))):
            components[again] = np.sort(rng.integers(0, size, (len(again), selected)), axis=1)
    else:
        keys = rng.random((tiles, size), dtype=np.float32)
        components = np.sort(np.argpartition(keys, selected - 1, axis=1)[:, :selected], axis=1)
    return (components + size * np.arange(tiles)[:, None]).ravel()
