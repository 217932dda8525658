"""The arms of a card's runs. All take the same global batch of a step; nodes only split it.

Dense arms exchange every number. In the sketches `muon-S`, each node adds its gradient to what it has not sent yet, and
sends that in uniform steps of S σ of each matrix, where the step of 0 is a dead zone; the rest stays on the node (error
feedback). Momentum and orthogonalization come after the merge. Embeddings and vectors take steps of AdamW; they are
all-reduced, in the sketches too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from bench.card.model import CardProblem
from bench.convergence.all_reduce import AdamW, GroupedMuon
from bench.convergence.arms import ARMS as STUDY_ARMS
from bench.convergence.batched import BatchedVotingMethod
from bench.convergence.batched_local import BatchedMuonMethod
from bench.convergence.method import SwarmSize
from thinwire_planner.methods.growth import GROWTHS, Growth
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.exact.schedule import learning_rate

GROWTH = 8
MEASURED_EVERY = 64
"""Rounds between two measurements of what a node sends: on a card, encoding takes longer than training."""
FLOAT_BITS = 32


@dataclass(frozen=True)
class CardArm:
    """One arm. kind: adamw, muon, votes or local. rate: the middle of the swept rates. adamw_rate: factor on it of what
    takes no steps of Muon. step: of the sketch, in σ; 0: all-reduced. study: the arm of `bench.convergence` that it
    is. growth: of its rounds. like: the arm whose best rate it has; empty: it is swept."""

    name: str
    what: str
    kind: str
    rate: float
    adamw_rate: float = MuonSpec().adamw_rate
    step: float = 0.0
    study: str = ""
    growth: Growth = ()
    like: str = ""

    @property
    def local_steps(self) -> int:
        return STUDY_ARMS[self.study].local_steps if self.study else 1


def _muon(name: str, what: str, adamw_rate: float = MuonSpec().adamw_rate, step: float = 0.0) -> CardArm:
    what = f"{what}; embeddings and vectors at {adamw_rate:g} times the rate"
    return CardArm(name, what, "muon", 0.02, adamw_rate, step)


def _growing(arm: CardArm) -> CardArm:
    what = f"{arm.name}, in rounds that become {GROWTH} times as large"
    return replace(arm, name=f"{arm.name}-growing", what=what, growth=GROWTHS[GROWTH], like=arm.name)


_HALF = _muon("muon-half", "the same", 0.5)
_FINE = _muon("muon-0.5", "the same, steps of 0.5 σ", 0.5, step=0.5)
ARMS = {
    arm.name: arm
    for arm in (
        CardArm("adamw", "AdamW, β 0.9 and 0.99, all-reduced", "adamw", 0.003),
        _muon("muon", "Muon, momentum 0.9, all-reduced"),
        _HALF,
        _growing(_HALF),
        _muon("muon-1.5", "error feedback on the node, steps of 1.5 σ, mean, then Muon", step=1.5),
        _FINE,
        _growing(_FINE),
        CardArm("thinwire", "the contract's defaults", "votes", 0.002, study="thinwire"),
        CardArm("muon-4", STUDY_ARMS["muon-4"].what, "local", 0.015, study="muon-4"),
    )
}
DENSE = ("adamw", "muon", "muon-half", "muon-half-growing")
"""The arms of the yardstick: others are compared with the best of them."""


class CardMethod(Protocol):
    """bits: that a node sends for a component and step, as measured so far; of the sketch, a component of matrices.
    up: bytes that a node sends a step."""

    bits: float
    up: float

    def train(self, step: int, first: int) -> Tensor:
        """Train a round on the samples from position `first` on; the training loss, which stays on the card."""
        ...


class DenseAdamW:
    """AdamW on the gradient of the whole batch."""

    bits = float(FLOAT_BITS)

    def __init__(self, problem: CardProblem, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm = problem, schedule, swarm
        self._adamw = AdamW(problem.parameters, 0.99)
        self.up = 4.0 * sum(tensor.numel() for tensor in problem.parameters.values())

    def train(self, step: int, first: int) -> Tensor:
        loss, gradients = self._problem.gradients_of_shares(first, 1, self._swarm.samples)
        mean = {name: gradient[0] for name, gradient in gradients.items()}
        self._adamw.step(mean, learning_rate(self._schedule, step))
        return loss


class MergedMuon:
    """Muon on the mean of what the nodes send: their gradients, or with a step their quantized sums."""

    def __init__(self, problem: CardProblem, arm: CardArm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._arm, self._schedule, self._swarm = problem, arm, schedule, swarm
        self._nodes, self._at_once = swarm.nodes if arm.step else 1, swarm.samples
        self._muon = GroupedMuon(problem.parameters, rule=MuonSpec(adamw_rate=arm.adamw_rate))
        self._unsent = {
            shape: torch.zeros(self._nodes, len(names), *shape, device=problem.device)
            for shape, names in self._muon.groups.items()
        } if arm.step else {}  # fmt: skip
        self._in_matrices = sum(len(names) * math.prod(shape) for shape, names in self._muon.groups.items())
        self._in_others = sum(problem.parameters[name].numel() for name in self._muon.others)
        self.bits = float(FLOAT_BITS)
        self.up = 0.0

    def grow(self, schedule: ScheduleSpec, swarm: SwarmSize, times: int) -> None:
        self._schedule, self._swarm = schedule, swarm

    @torch.no_grad()
    def train(self, step: int, first: int) -> Tensor:
        rate = learning_rate(self._schedule, step)
        loss, gradients = self._gradients(first)
        is_measured, entropies = step % MEASURED_EVERY == 0 and self._arm.step > 0, []
        for shape, names in self._muon.groups.items():
            of_group = torch.stack([gradients.pop(name) for name in names], 1)
            if self._arm.step:
                of_group, levels = self._quantized(shape, of_group)
                entropies += [entropy(levels[0]) * levels[0].numel()] if is_measured else []
            with tf32():
                self._muon.step_group(shape, of_group.mean(0), rate)
        self._muon.step_others({name: gradient.mean(0) for name, gradient in gradients.items()}, rate)
        if is_measured:
            self.bits = sum(entropies) / self._in_matrices
        self.up = (self._in_matrices * self.bits + self._in_others * FLOAT_BITS) / 8
        return loss

    def _gradients(self, first: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss and the gradient of each node, in passes as large as the first round."""
        passes, at_once = self._swarm.samples // self._at_once, self._at_once
        share, losses, total = at_once // self._nodes, [], dict[str, Tensor]()
        for start in range(first, first + passes * at_once, at_once):
            with torch.enable_grad():
                loss, gradients = self._problem.gradients_of_shares(start, self._nodes, share)
            losses.append(loss)
            total = {name: total[name].add_(one) if total else one for name, one in gradients.items()}
        return torch.stack(losses).mean(), {name: one.div_(passes) for name, one in total.items()}

    def _quantized(self, shape: tuple[int, ...], gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each node sends, and the same in steps: [nodes, matrices, rows, columns]. The rest stays here."""
        unsent = self._unsent[shape].add_(gradients)
        sigma = unsent.square().mean((2, 3), keepdim=True).sqrt_()
        one = sigma.mul_(self._arm.step).clamp_(min=torch.finfo(torch.float32).tiny)
        levels = unsent.div(one).round_()
        sent = levels * one
        unsent.sub_(sent)
        return sent, levels


def entropy(levels: Tensor) -> float:
    """Bits a component that an entropy coder needs at least, if it knows how frequent each level is."""
    counts = torch.unique(levels, return_counts=True)[1].double()
    shares = counts / counts.sum()
    return float(-(shares * shares.log2()).sum())


@contextmanager
def tf32() -> Iterator[None]:
    """Matrix products of float32 in TF32: orthogonalization needs no more. Exact arithmetic must not see it."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


class _BatchedMuonMethod(BatchedMuonMethod):
    """The study's method, orthogonalizing in TF32."""

    def _learn(self, gradients: dict[str, Tensor], rate: float) -> None:
        with tf32():
            super()._learn(gradients, rate)


class StudyMethod:
    """A method of `bench.convergence`: thinwire's votes, or local steps of Muon. Bits and bytes are those of a step,
    not of a round."""

    def __init__(self, problem: CardProblem, arm: CardArm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        make = BatchedVotingMethod if arm.kind == "votes" else _BatchedMuonMethod
        self._method = make(problem, STUDY_ARMS[arm.study], schedule, swarm)  # type: ignore[arg-type]
        self._method.counted_every, self._steps = MEASURED_EVERY // arm.local_steps, arm.local_steps
        self._parameters = sum(tensor.numel() for tensor in problem.parameters.values())
        self.bits = self.up = 0.0

    def train(self, step: int, first: int) -> Tensor:
        loss, traffic = self._method.round(step, first)
        self.up = traffic.up / self._steps
        self.bits = 8 * self.up / self._parameters
        return loss  # type: ignore[return-value]


def make_method(problem: CardProblem, arm: CardArm, schedule: ScheduleSpec, swarm: SwarmSize) -> CardMethod:
    if arm.kind == "adamw":
        return DenseAdamW(problem, schedule, swarm)
    if arm.kind == "muon":
        return MergedMuon(problem, arm, schedule, swarm)
    return StudyMethod(problem, arm, schedule, swarm)
