"""One run of the study: an arm with a learning rate, a seed, a number of nodes and of tokens."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.convergence.all_reduce import AllReduce
from bench.convergence.arms import ARMS, Arm
from bench.convergence.batched import BatchedVotingMethod
from bench.convergence.batched_local import BatchedMuonMethod, can_be_batched
from bench.convergence.compressed import PublishedMethod, SwarmMethod
from bench.convergence.decentralized import GossipMethod
from bench.convergence.growth import schedules_of, stages_of
from bench.convergence.local_steps import DiLoCo
from bench.convergence.method import Growing, Method, SwarmSize
from bench.convergence.problem import Problem
from bench.convergence.sparseloco import SparseLoCo
from bench.convergence.text import stdlib
from bench.convergence.unfinished import Training, save, saved
from thinwire_proto.contract import DecoderSpec, ScheduleSpec
from thinwire_proto.models import BYTE_PRESETS

PRESETS = BYTE_PRESETS | {"byte-3m": DecoderSpec(width=192, layers=6, heads=6, hidden=576, context=256)}
"""The product's presets, and one between its two smallest."""

METHODS: dict[str, Callable[[Problem, Arm, ScheduleSpec, SwarmSize], Method]] = {
    "adamw": AllReduce,
    "muon": AllReduce,
    "reference": PublishedMethod,
    "diloco": DiLoCo,
    "sparseloco": SparseLoCo,
    "votes": SwarmMethod,
    "gossip": GossipMethod,
}
CURVE_POINTS = 16
CURVE_SAMPLES = 64
"""Held-out samples for a point of the curve. They are harder or easier than those of `loss`, so the two differ."""
COMPILED_FROM = 1 << 20
"""Tokens of the shortest run whose passes are compiled on a processor: 1.3 times as fast, after half a minute."""
SAVE_EVERY_S = 120.0
"""Seconds of a run that an interruption costs at most. Does not change the result."""
WARMUP_STEPS, WARMUP_SHARE_MAX = 50, 0.2
"""The warm-up is a number of steps, not a share, so that a rate means the same in the sweep and in a
full-length run."""


@dataclass(frozen=True)
class Size:
    """The sizes that all runs of a study share.

    samples: of all nodes in a local step. held_out: samples of the final
    evaluation.
    """

    preset: str = "byte-1m"
    samples: int = 16
    held_out: int = 512

    @property
    def spec(self) -> DecoderSpec:
        """The model of the preset."""
        return PRESETS[self.preset]


@dataclass(frozen=True)
class Run:
    """One run, fully specified. outer: the outer learning rate; 0: the arm has none."""

    arm: str
    rate: float
    seed: int
    nodes: int
    tokens: int
    size: Size = Size()
    outer: float = 0.0

    @property
    def round_tokens(self) -> int:
        """Tokens of all nodes between two exchanges; where rounds grow, between the first two."""
        return self.size.samples * self.size.spec.context * ARMS[self.arm].local_steps

    @property
    def name(self) -> str:
        outer = f" outer {self.outer:g}" if self.outer else ""
        return f"{self.arm} rate {self.rate:g}{outer} nodes {self.nodes} seed {self.seed} tokens {self.tokens:,}"


@dataclass(frozen=True)
class Result:
    """The result of a run.

    curve: (tokens, held-out loss in nats a token). up, down: bytes of one node over the whole run. corpus: its hash.
    single_node_loss: in a gossip run, of a node's own parameters; `loss` is that of the mean model. device: what
    computed it, "cpu" or the name of a card.
    """

    run: Run
    settings: dict[str, Any]
    curve: list[tuple[int, float]]
    loss: float
    up: float
    down: float
    parameters: int
    seconds: float
    corpus: str
    torch: str
    single_node_loss: float | None = None
    device: str = "cpu"

    @property
    def bytes(self) -> float:
        return self.up + self.down


def train(run: Run, state: Path | None = None) -> Result:
    """Carry out a run, on a card if there is one; until its end, or until the loss is not finite.

    state: a file in which the run saves how far it is, and from which it goes on; the rounds are the same to the bit.
    The caller removes it.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text, arm = stdlib(), replace(ARMS[run.arm], outer=run.outer)
    stages = stages_of(arm.growth, run.tokens // run.round_tokens)
    rounds = stages[-1].ends
    schedules = schedules_of(schedule_of(run.rate, rounds * arm.local_steps), arm.growth, stages)
    settings = {**arm.settings, "outer": run.outer, "corpus": text.hash, "torch": torch.__version__}
    now = saved(state, settings, device) if state else None
    if now is None:
        problem = Problem(run.size.spec, text, run.seed, device)
        now = Training(settings, problem, make_method(problem, arm, run, schedules[0]))
    problem, method = now.problem, now.method
    problem.read(text)
    if device.type == "cpu" and run.tokens >= COMPILED_FROM and any(map(shutil.which, ("c++", "g++", "clang++"))):
        problem.compile()
    began = time.monotonic() - now.seconds
    last_saved = time.monotonic()
    while now.rounds < rounds:
        stage, schedule = next(one for one in zip(stages, schedules, strict=True) if now.rounds < one[0].ends)
        if now.rounds == stage.begins > 0:
            assert isinstance(method, Growing)
            method.grow(schedule, SwarmSize(run.nodes, run.size.samples * stage.times), stage.times)
        first = stage.steps_before(now.rounds) * arm.local_steps * run.size.samples
        loss, of_round = method.round(now.rounds * arm.local_steps, first)
        now.rounds += 1
        now.traffic += of_round
        if not math.isfinite(loss):
            break
        tokens = stage.steps_before(now.rounds) * run.round_tokens
        if CURVE_POINTS * tokens >= run.tokens * (len(now.curve) + 1):
            now.curve.append((tokens, problem.held_out_loss(CURVE_SAMPLES)))
        if state and time.monotonic() - last_saved > SAVE_EVERY_S:
            now.seconds = time.monotonic() - began
            save(now, state)
            last_saved = time.monotonic()
    return Result(
        run=run,
        settings=arm.settings,
        curve=now.curve,
        loss=problem.held_out_loss(run.size.held_out),
        up=now.traffic.up,
        down=now.traffic.down,
        parameters=sum(tensor.numel() for tensor in problem.parameters.values()),
        seconds=time.monotonic() - began,
        corpus=text.hash,
        torch=torch.__version__,
        single_node_loss=method.single_node_loss(run.size.held_out) if isinstance(method, GossipMethod) else None,
        device=name_of(device),
    )


def train_in(folder: Path, run: Run) -> Result:
    """Carry out a run of the study in this folder."""
    return train(run, state_of(folder, run))


def state_of(folder: Path, run: Run) -> Path:
    """Where an unfinished run saves how far it is."""
    return folder / "unfinished" / f"{hashlib.sha256(repr(run).encode()).hexdigest()[:16]}.pt"


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def schedule_of(rate: float, steps: int) -> ScheduleSpec:
    """The schedule of a run with so many local steps."""
    warmup_steps = min(WARMUP_STEPS, int(steps * WARMUP_SHARE_MAX))
    return ScheduleSpec(learning_rate=rate, warmup_steps=warmup_steps, steps=steps)


def make_method(problem: Problem, arm: Arm, run: Run, schedule: ScheduleSpec) -> Method:
    """schedule: of the first rounds."""
    method = METHODS[arm.kind]
    if problem.device.type != "cpu" and arm.kind == "votes" and not arm.growth:  # a CPU does not wait for launches
        if can_be_batched(arm):
            method = BatchedMuonMethod
        elif arm.local_steps == 1 and arm.demo.magnitude != "tile":
            method = BatchedVotingMethod
    return method(problem, arm, schedule, SwarmSize(run.nodes, run.size.samples))
