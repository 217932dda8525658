"""Measures this machine: seconds of a step of a preset, and the rates of merging and applying on the exact path."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.contract.models.presets import PRESETS
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.parameters import Parameters
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Merger, Votes
from thinwire_proto.task import task_of

STEPS_MIN, STEPS_MAX = 5, 200
WORK_SECONDS = 10.0
"""After so long, no further step is begun, once there are STEPS_MIN."""
WARMUP_STEPS = 2
EDGE = 512
"""Side of the matrix that the exact path is measured with."""
REPEATS = 3
VOTERS = 4
SCALE = 0.02


@dataclass(frozen=True)
class MeasuredMachine:
    """steps_s: seconds of each step. merge, apply: parameters a second."""

    steps_s: tuple[float, ...]
    merge: float
    apply: float


def measure_machine(preset: str, samples: int, *, work_seconds: float = WORK_SECONDS) -> MeasuredMachine:
    """Measure on this machine's threads. samples: of one step. Raises ConfigError if there is no such preset."""
    merge, apply = exact_rates()
    return MeasuredMachine(steps_of(preset, samples, work_seconds), merge, apply)


def steps_of(preset: str, samples: int, work_seconds: float) -> tuple[float, ...]:
    """Seconds of forward and backward passes of `samples` samples. Tokens are random: their values change no time."""
    if preset not in PRESETS:
        raise ConfigError(f"model.preset: {preset!r} does not exist; choose one of {', '.join(PRESETS)}")
    spec = PRESETS[preset]
    model = task_of(spec).model("cpu")
    generator = torch.Generator().manual_seed(1)
    for _, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=SCALE, generator=generator)
    shape = (samples, spec.context + 1)

    def step() -> None:
        model.loss(torch.randint(spec.vocabulary, shape, generator=generator)).backward()  # type: ignore[no-untyped-call]

    for _ in range(WARMUP_STEPS):
        step()
    found: list[float] = []
    while len(found) < STEPS_MIN or (sum(found) < work_seconds and len(found) < STEPS_MAX):
        found.append(_seconds(step))
    return tuple(found)


def exact_rates() -> tuple[float, float]:
    """(parameters a second of merging one node's votes, and of applying an update), with the default k."""
    layout = TileLayout([Parameter(name="w", shape=(EDGE, EDGE))])
    demo = DemoSpec()
    random = np.random.default_rng(1)
    votes = [_votes(layout, demo.k_of_round(VOTERS), random) for _ in range(VOTERS)]

    def merge() -> Merger:
        merger = Merger(layout.components)
        for one in votes:
            merger.add(one, 1)
        return merger

    merged = merge().merged()
    parameters = Parameters(layout, {"w": torch.randn(EDGE, EDGE, generator=torch.Generator().manual_seed(1))})
    merging = min(_seconds(merge) for _ in range(REPEATS)) / VOTERS
    applying = min(
        _seconds(lambda: parameters.apply(merged, demo, learning_rate=1e-3, decay=0.0, step=0)) for _ in range(REPEATS)
    )
    return layout.parameters / merging, layout.parameters / applying


def _votes(layout: TileLayout, k: int, random: np.random.Generator) -> Votes:
    """k components of each tile, drawn at random."""
    found = [
        np.sort(random.permutation(MATRIX_COMPONENTS)[:k]) + MATRIX_COMPONENTS * tile
        for tile in range(layout.matrix_tiles)
    ]
    components = np.concatenate(found).astype(np.int64)
    return Votes(components, random.random(len(components)) < 0.5)


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
