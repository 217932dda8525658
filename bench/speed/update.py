"""Work of a node on a matrix in each round besides forward and backward: compress the momentum, and apply the update.

The baseline is the published operations, one by one, with equal threads: `thinwire.compression.published`. All
numbers of threads are measured in turns, so they can be compared with each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from bench.speed.row import BenchRow
from bench.speed.synthetic import contract_of, uniform_votes
from bench.speed.timing import interleaved, threads
from thinwire.compression.momentum import Momentum
from thinwire.compression.published import ChunkCoefficients, PublishedMomentum
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, layout_of
from thinwire_proto.exact.update import Update

SHAPE = (2048, 4096)
NODES = 4
FASTER_WANTED = 3
SLOWER_ALLOWED = 1.1
"""Of several threads, relative to one."""
PUBLISHED, NAME = "published operations", "w"
AS_PUBLISHED = DemoSpec(k=32, beta=0.999, magnitude="sign", precondition="none")
"""The settings of the published code, except that votes are sent."""


class ThinwireStep:
    """One node's momentum and replica for a single matrix, and an update of `NODES` nodes."""

    def __init__(self, shape: tuple[int, int], demo: DemoSpec) -> None:
        contract = contract_of((Parameter(name=NAME, shape=shape),), demo)
        layout = layout_of(contract.parameters)
        self._k = demo.k
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


Times = dict[int, tuple[float, float]]
"""Seconds of thinwire and of the baseline, by number of threads."""


def update_rows(numbers: Sequence[int], shape: tuple[int, int] = SHAPE) -> Iterator[BenchRow]:
    """Rows for each number of threads."""
    measured: list[tuple[str, str, Times]] = []
    for what, demo in ((f"k = {AS_PUBLISHED.k}", AS_PUBLISHED), ("by default", DemoSpec())):
        ours, published = ThinwireStep(shape, demo), PublishedStep(shape, demo.k)
        compress = _times(numbers, ours.compress, published.compress)
        apply = _times(numbers, ours.apply, published.apply)
        both = {number: _sum(compress[number], apply[number]) for number in numbers}
        measured.append((f"compress, {what}", PUBLISHED, compress))
        measured.append((f"apply an update of {NODES}, {what}", PUBLISHED, apply))
        measured.append((f"both, {what}", PUBLISHED, both))
    hashed = _times(numbers, lambda: ours.replica.fingerprint(1), ours.replica.tensors[NAME].clone)
    measured.append(("fingerprint", "one copy of the matrix", hashed))
    for number in numbers:
        topic = f"a matrix of {shape[0]} × {shape[1]}, {_in_words(number)}"
        for what, name, times in measured:
            ours_ms, baseline_ms = (1e3 * seconds for seconds in times[number])
            wanted = baseline_ms / FASTER_WANTED if name == PUBLISHED else None
            yield BenchRow(topic, what, ours_ms, baseline_ms, "ms", name, wanted=wanted)
        for what, _, times in measured if number > 1 and 1 in numbers else ():
            ours_ms, one_ms = 1e3 * times[number][0], 1e3 * times[1][0]
            name = f"thinwire, {_in_words(1)}"
            yield BenchRow(topic, what, ours_ms, one_ms, "ms", name, wanted=SLOWER_ALLOWED * one_ms)


def _times(numbers: Sequence[int], ours: Callable[[], object], baseline: Callable[[], object]) -> Times:
    def on_threads(number: int, work: Callable[[], object]) -> None:
        with threads(number):
            work()

    works = [partial(on_threads, number, work) for number in numbers for work in (ours, baseline)]
    seconds = interleaved(*works)
    return {number: (seconds[2 * at], seconds[2 * at + 1]) for at, number in enumerate(numbers)}


def _sum(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


def _in_words(number: int) -> str:
    return f"{number} thread{'s' if number > 1 else ''}"


def rows() -> Iterator[BenchRow]:
    cores = os.cpu_count() or 1
    yield from update_rows(sorted({1, min(2, cores)}))
