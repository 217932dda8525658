"""The scenes of the study: a defence, an attack, and how many of the nodes are hostile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from bench.adversary.attacks import ATTACKS
from bench.adversary.level_attacks import LEVEL_ATTACKS
from bench.convergence.arms import DEFAULT, MERGED_FINE, MERGED_MUON
from thinwire_proto.contract import DecoderSpec

IN_LEVELS = {MERGED_MUON: ", `merged_muon`", MERGED_FINE: ", `merged_muon` in 19 levels"}
"""The arms whose votes are in levels, and what a defence is called with them."""
NOBODY = "none"
"""The attack of a scene without hostile nodes."""


@dataclass(frozen=True)
class AdversarySize:
    """The sizes that all scenes of a study share: model, samples of a node in a round, and rounds.

    present: nodes, hostile ones included. k, update_topk: components a tile that a node sends, and that an update
    keeps; 0: all of them. held_out: samples of the final evaluation.
    """

    width: int = 64
    layers: int = 1
    context: int = 64
    samples: int = 2
    rounds: int = 100
    present: int = 16
    k: int = 44
    update_topk: int = 0
    held_out: int = 512

    @property
    def spec(self) -> DecoderSpec:
        return DecoderSpec(
            width=self.width, layers=self.layers, heads=2, hidden=3 * self.width // 2, context=self.context
        )


@dataclass(frozen=True)
class Scene:
    """One run. trusting: whether weights follow trust. alone: the hostile nodes are absent, and nothing stands in for
    them. arm: of the convergence study, whose settings and learning rate the nodes have."""

    trusting: bool
    attack: str
    hostile: int
    seed: int
    size: AdversarySize = AdversarySize()
    arm: str = DEFAULT

    @property
    def alone(self) -> bool:
        return self.attack == NOBODY

    @property
    def honest(self) -> int:
        return self.size.present - self.hostile

    @property
    def defence(self) -> str:
        return ("`vote` + trust" if self.trusting else "`vote`") + IN_LEVELS.get(self.arm, "")

    @property
    def name(self) -> str:
        return f"{self.arm}-{'vote+trust' if self.trusting else 'vote'}-{self.attack}-{self.hostile}-seed{self.seed}"

    def baseline(self) -> Scene:
        """The same honest nodes alone, without trust."""
        return replace(self, trusting=False, attack=NOBODY)


HOSTILE = (2, 4, 6)


@dataclass(frozen=True)
class Study:
    """The scenes of a study, on seed 1. repeated: further seeds with trust against a quarter of hostile nodes.
    has_levels: whether a quarter also attacks swarms of the rule `merged_muon`."""

    size: AdversarySize = AdversarySize()
    hostile: tuple[int, ...] = HOSTILE
    repeated: tuple[int, ...] = ()
    has_levels: bool = False

    def scenes(self) -> Iterator[Scene]:
        """All scenes, those first that others are compared with."""
        for hostile in (0, *self.hostile):
            yield Scene(False, NOBODY, hostile, 1, self.size)
        yield Scene(True, NOBODY, 0, 1, self.size)
        for trusting, attack, hostile in product((True, False), ATTACKS, self.hostile):
            yield Scene(trusting, attack, hostile, 1, self.size)
        quarter = self.size.present // 4
        for seed in self.repeated:
            yield Scene(False, NOBODY, quarter, seed, self.size)
            for attack in ATTACKS:
                yield Scene(True, attack, quarter, seed, self.size)
        for arm in IN_LEVELS if self.has_levels else ():
            for trusting, hostile in ((False, 0), (False, quarter), (True, 0)):
                yield Scene(trusting, NOBODY, hostile, 1, self.size, arm)
            for trusting, attack in product((True, False), LEVEL_ATTACKS):
                yield Scene(trusting, attack, quarter, 1, self.size, arm)


FULL = Study(repeated=(2, 3), has_levels=True)
QUICK = Study(AdversarySize(rounds=60, held_out=128), hostile=(4,))
