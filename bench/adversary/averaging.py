"""DeMo as published, with hostile nodes: magnitudes travel as floats, and the mean of what arrives counts.

Nothing bounds a magnitude, so hostile nodes that want to be heard multiply theirs by SHOUT.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.adversary.attacks import STALE_AFTER
from bench.adversary.nodes import Nodes, begins, delivers
from bench.adversary.scene import Scene
from bench.convergence.arms import ARMS, REFERENCE
from thinwire.compression.published import ChunkCoefficients, PublishedMomentum
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.exact.schedule import learning_rate

SHOUT = 100.0
Sent = dict[str, ChunkCoefficients]


class AveragingSwarm:
    """Nodes that send magnitudes, each of which counts as it is."""

    def __init__(self, scene: Scene, nodes: Nodes, schedule: ScheduleSpec) -> None:
        self._scene, self._nodes, self._schedule = scene, nodes, schedule
        shapes = {name: tuple(tensor.shape) for name, tensor in nodes.problem.parameters.items()}
        demo = ARMS[REFERENCE].demo
        nodes.put({name: tensor.data for name, tensor in nodes.problem.parameters.items()})
        present = scene.honest if scene.alone else scene.size.present
        self._momenta = [PublishedMomentum(shapes, beta=demo.beta, k=demo.k) for _ in range(present)]
        self._under_way: dict[int, Sent] = {}
        self._earlier: dict[int, list[Sent]] = {number: [] for number in range(scene.honest, present)}
        self._drawn = torch.Generator().manual_seed(scene.seed)
        self.judge = None

    @property
    def present(self) -> range:
        return range(len(self._momenta))

    def round(self, turn: int) -> None:
        rate = learning_rate(self._schedule, turn)
        for number, momentum in enumerate(self._momenta):
            if begins(number, turn):
                momentum.accumulate(self._nodes.gradients(number, turn), rate)
                self._under_way[number] = momentum.extract()
        honest = [self._under_way[number] for number in range(self._scene.honest) if delivers(number, turn)]
        hostile = [self._attack(number, turn, honest) for number in self._earlier]
        with torch.no_grad():
            for name, direction in self._momenta[0].step_of([*honest, *hostile]).items():
                self._nodes.problem.parameters[name].sub_(direction, alpha=rate)

    def weight(self, number: int) -> int:
        return 1

    def _attack(self, number: int, turn: int, honest: list[Sent]) -> Sent:
        """Return the gradient that a hostile node sends; `bench.adversary.attacks` describes each attack."""
        own, earlier = self._under_way[number], self._earlier[number]
        earlier.append(own)
        agreed = torch.Generator().manual_seed((self._scene.seed << 32) + turn)
        attacks: dict[str, Callable[[], Sent]] = {
            "flip": lambda: _scaled(own, -SHOUT),
            "random": lambda: self._random(own, self._drawn),
            "copy": lambda: honest[(number - self._scene.honest) % len(honest)],
            "silence": lambda: _scaled(own, 0.0),
            "stale": lambda: own if turn < STALE_AFTER else _scaled(earlier[turn % STALE_AFTER], SHOUT),
            "collude": lambda: self._random(own, agreed),
            "oppose": lambda: _scaled(honest[turn % len(honest)], -SHOUT),  # one honest node after the other
        }
        return attacks[self._scene.attack]()

    def _random(self, like: Sent, drawn: torch.Generator) -> Sent:
        """Random values of a typical size, times SHOUT, on random coefficients."""
        found = {}
        for name, one in like.items():
            chunks, k = one.indices.shape
            indices = torch.rand((chunks, self._momenta[0].size(name)), generator=drawn).topk(k, 1).indices
            values = torch.randn((chunks, k), generator=drawn) * one.values.abs().mean() * SHOUT
            found[name] = ChunkCoefficients(indices, values)
        return found


def _scaled(sent: Sent, by: float) -> Sent:
    return {name: ChunkCoefficients(one.indices, one.values * by) for name, one in sent.items()}
