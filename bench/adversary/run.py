"""Carries out one scene, and the form of its result."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from bench.adversary.scene import Scene
from bench.adversary.swarm import Nodes, VotingSwarm
from bench.convergence.arms import ARMS
from thinwire_proto.contract import ScheduleSpec

RATE_FACTOR = 1.5
"""Over the rate at which the arm's sweep begins: the runs are short."""
WARMUP_STEPS = 20
CURVE_POINTS = 10
CURVE_SAMPLES = 64


@dataclass(frozen=True)
class NodeRecord:
    """The fate of a node. zero_from: the round in which its weight first was zero; None if it never was. zero:
    rounds at weight zero. bans: how many. why: reasons of the decisions about it, by cause."""

    hostile: bool
    zero_from: int | None
    zero: int
    bans: int
    why: dict[str, str]


@dataclass(frozen=True)
class SceneResult:
    """curve: (tokens of the nodes that are honest, held-out loss in nats a byte). loss: at the end."""

    scene: Scene
    curve: list[tuple[int, float]]
    loss: float
    nodes: list[NodeRecord]
    seconds: float


def play(scene: Scene) -> SceneResult:
    """Carry out a scene."""
    began, size = time.monotonic(), scene.size
    nodes = Nodes(scene)
    warmup_steps = min(WARMUP_STEPS, size.rounds // 3)
    rate = RATE_FACTOR * ARMS[scene.arm].rate
    schedule = ScheduleSpec(learning_rate=rate, warmup_steps=warmup_steps, steps=size.rounds)
    swarm = VotingSwarm(scene, nodes, schedule)
    measured = {round(size.rounds * (point + 1) / CURVE_POINTS) for point in range(CURVE_POINTS)}
    curve, zero = [], {number: [] for number in swarm.present}  # type: tuple[list[tuple[int, float]], dict[int, list[int]]]
    for turn in range(size.rounds):
        for number in swarm.present:
            if swarm.weight(number) == 0:
                zero[number].append(turn)
        swarm.round(turn)
        if turn + 1 in measured:
            tokens = (turn + 1) * scene.honest * size.samples * size.context
            curve.append((tokens, nodes.problem.held_out_loss(CURVE_SAMPLES)))
            if not math.isfinite(curve[-1][1]):
                break
    records = [_record(scene, number, zero[number], swarm) for number in swarm.present]
    return SceneResult(scene, curve, nodes.problem.held_out_loss(size.held_out), records, time.monotonic() - began)


def _record(scene: Scene, number: int, zero: list[int], swarm: VotingSwarm) -> NodeRecord:
    judge = swarm.judge
    why = {} if judge is None else judge.why(number)
    bans = 0 if judge is None else judge.bans(number)
    return NodeRecord(number >= scene.honest, zero[0] if zero else None, len(zero), bans, why)
