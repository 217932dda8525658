"""The scenes of the study: a defence, an attack, and how many of the nodes are hostile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from bench.adversary.attacks import ATTACKS
from thinwire_proto.contract import DecoderSpec

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
    them."""

    trusting: bool
    attack: str
    hostile: int
    seed: int
    size: AdversarySize = AdversarySize()

    @property
    def alone(self) -> bool:
        return self.attack == NOBODY

    @property
    def honest(self) -> int:
        return self.size.present - self.hostile

    @property
    def defence(self) -> str:
        return "`vote` + trust" if self.trusting else "`vote`"

    @property
    def name(self) -> str:
        return f"{'vote+trust' if self.trusting else 'vote'}-{self.attack}-{self.hostile}-seed{self.seed}"

    def baseline(self) -> Scene:
        """The same honest nodes alone, without trust."""
        return Scene(False, NOBODY, self.hostile, self.seed, self.size)


HOSTILE = (2, 4, 6)


@dataclass(frozen=True)
class Study:
    """The scenes of a study, on seed 1. repeated: further seeds with trust against a quarter of hostile nodes."""

    size: AdversarySize = AdversarySize()
    hostile: tuple[int, ...] = HOSTILE
    repeated: tuple[int, ...] = ()

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


FULL = Study(repeated=(2, 3))
QUICK = Study(AdversarySize(rounds=60, held_out=128), hostile=(4,))
