"""A contract so small that a test takes milliseconds, and synthetic votes for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from thinwire_proto.contract import Contract, CorpusSpec, Parameter
from thinwire_proto.data.corpus import Corpus, CorpusFile
from thinwire_proto.exact.magnitudes import tiles_with
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import Votes
from thinwire_proto.models import build_decoder, manifest

CPU = torch.device("cpu")
MODEL = {"width": 64, "layers": 1, "heads": 2, "hidden": 96, "context": 32}
SHAPES = ((64, 128), (100, 70), (3, 5, 40), (130,), (1,))
"""Matrices with and without padding, one of three dimensions, and vectors."""


def small_corpus() -> Corpus:
    text = b"".join(b"line %d of a text that is easy to learn\n" % (number % 7) for number in range(2000))
    return Corpus([CorpusFile("a.py", text, False), CorpusFile("b.py", text[:5000], True)])


def small_contract(**sections: Any) -> Contract:
    """The contract of a tiny model on `small_corpus`. Sections such as demo={"k": 8} override its defaults."""
    corpus = small_corpus()
    data = CorpusSpec(corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train))
    contract = Contract.model_validate(
        {"model": MODEL, "data": data, "parameters": (Parameter(name="x", shape=(1,)),)} | sections
    )
    return contract.model_copy(update={"parameters": manifest(build_decoder(contract.model, "meta"))})


def shapes_contract(**sections: Any) -> Contract:
    """A contract over tensors of irregular shapes that belong to no model."""
    parameters = tuple(Parameter(name=f"t{number}", shape=shape) for number, shape in enumerate(SHAPES))
    return small_contract(**sections).model_copy(update={"parameters": parameters})


def random_replica(contract: Contract, seed: int = 0, step: int = 0) -> Replica:
    generator = torch.Generator().manual_seed(seed)
    tensors = {p.name: 0.02 * torch.randn(p.shape, generator=generator) for p in contract.parameters}
    return Replica(contract, tensors, step, b"\0" * 32)


def random_votes(layout: TileLayout, k: int, seed: int) -> Votes:
    """Up to k votes per tile; some tiles have none."""
    rng = np.random.default_rng(seed)
    parts = []
    for first, tiles, size in ((0, layout.matrix_tiles, 4096), (layout.matrix_components, layout.vector_tiles, 64)):
        for tile in range(tiles):
            count = 0 if rng.random() < 0.2 else min(k, size)
            parts.append(first + tile * size + np.sort(rng.choice(size, count, replace=False)))
    components = np.concatenate(parts).astype(np.int64)
    return Votes(components, rng.random(len(components)) < 0.5)


def random_sized_votes(layout: TileLayout, k: int, seed: int) -> Votes:
    """Like `random_votes`, with a magnitude code for each tile that has votes."""
    votes = random_votes(layout, k, seed)
    tiles, _ = tiles_with(votes.components, layout)
    codes = np.random.default_rng(seed + 1).integers(0, 256, len(tiles)).astype(np.uint8)
    return replace(votes, codes=codes)
