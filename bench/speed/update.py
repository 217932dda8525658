"""Work of a node on a matrix in each round besides forward and backward: compress the momentum, and apply the update.

The baseline is the published operations, one by one, with equal threads: `thinwire_node.compression.published`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from bench.speed.row import BenchRow
from bench.speed.synthetic import contract_of, uniform_votes
from bench.speed.timing import interleaved, threads
from thinwire_node.compression.momentum import Momentum
from thinwire_node.compression.published import ChunkCoefficients, PublishedMomentum
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.magnitudes import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, layout_of
from thinwire_proto.exact.update import Update

SHAPE = (2048, 4096)
NODES = 4
FASTER_WANTED = 3
PUBLISHED, NAME = "published operations", "w"
AS_PUBLISHED = DemoSpec(k=32, k_policy="fixed", beta=0.999, magnitude="sign", precondition="none")
"""The settings of the published code, except that votes are sent."""


class ThinwireStep:
    """One node's momentum and replica for a single matrix, and an update of `NODES` nodes."""

    def __init__(self, shape: tuple[int, int], demo: DemoSpec) -> None:
        contract = contract_of((Parameter(name=NAME, shape=shape),), demo)
        layout = layout_of(contract.parameters)
        self._k = demo.k_of_round(NODES)
        merger = merger_of(contract, layout, step=0)
        for seed in range(NODES):
            merger.add(uniform_votes(layout, self._k, seed), 1)
        self._update = Update(0, 0.5, 1.0, merger.merged())
        self.replica = Replica(contract, {NAME: torch.randn(shape)}, 0, b"")
        self.momentum = Momentum(layout, demo, "cpu")
        self._gradient = {NAME: torch.randn(shape)}

    def compress(self) -> None:
        self.momentum.accumulate_and_extract(self._gradient, 1e-3, 1, self._k)

    def apply(self) -> None:
        self.replica.step = 0
        self.replica.apply(self._update, b"")


class PublishedStep:
    """The same step with the published operations."""

    def __init__(self, shape: tuple[int, int], k: int) -> None:
        self._published = PublishedMomentum({NAME: shape}, k=k)
        self._theta, self._gradient = torch.randn(shape), {NAME: torch.randn(shape)}
        tiles = shape[0] * shape[1] // MATRIX_COMPONENTS
        self._contributions = [_coefficients(tiles, k, seed) for seed in range(NODES)]

    def compress(self) -> None:
        self._published.accumulate(self._gradient, 1e-3)
        self._published.extract()

    def apply(self) -> None:
        self._theta.sub_(self._published.step_of(self._contributions)[NAME], alpha=1e-3)


def _coefficients(tiles: int, k: int, seed: int) -> dict[str, ChunkCoefficients]:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.rand((tiles, MATRIX_COMPONENTS), generator=generator).topk(k, dim=1).indices
    return {NAME: ChunkCoefficients(indices, torch.randn((tiles, k), generator=generator))}


def update_rows(number: int, shape: tuple[int, int] = SHAPE) -> Iterator[BenchRow]:
    """Rows for `number` threads."""
    topic = f"a matrix of {shape[0]} × {shape[1]}, {number} thread{'s' if number > 1 else ''}"

    def row(what: str, ours_s: float, baseline_s: float, name: str, wanted_s: float | None = None) -> BenchRow:
        wanted_ms = None if wanted_s is None else 1e3 * wanted_s
        return BenchRow(topic, what, 1e3 * ours_s, 1e3 * baseline_s, "ms", name, wanted=wanted_ms)

    for what, demo in ((f"k = {AS_PUBLISHED.k}", AS_PUBLISHED), ("by default", DemoSpec())):
        with threads(number):
            ours, published = ThinwireStep(shape, demo), PublishedStep(shape, demo.k_of_round(NODES))
            compress_s, published_compress_s = interleaved(ours.compress, published.compress)
            apply_s, published_apply_s = interleaved(ours.apply, published.apply)
        yield row(f"compress, {what}", compress_s, published_compress_s, PUBLISHED)
        yield row(f"apply an update of {NODES}, {what}", apply_s, published_apply_s, PUBLISHED)
        both_s, published_both_s = compress_s + apply_s, published_compress_s + published_apply_s
        yield row(f"both, {what}", both_s, published_both_s, PUBLISHED, published_both_s / FASTER_WANTED)
    with threads(number):
        fingerprint_s, copy_s = interleaved(lambda: ours.replica.fingerprint(1), ours.replica.tensors[NAME].clone)
    yield row("fingerprint", fingerprint_s, copy_s, "one copy of the matrix")


def rows(full: bool = False) -> Iterator[BenchRow]:
    cores = os.cpu_count() or 1
    for number in sorted({1, 2, cores} if full else {1, min(2, cores)}):
        yield from update_rows(number)
