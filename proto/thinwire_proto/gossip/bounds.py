"""Bounds how far a peer may move a node. Pure.

The problem: a node mixes what its peers send. One message with parameters of 1,000 ends the model, and nobody audits
parameters that each node has for itself.

What fails: a radius from the distances that peers have now. Between honest nodes they are alike within a factor of
three, but a hostile peer that stays just below three times the usual distance moves a node, so that its honest peers
are further away, and so on: within sixty iterations the model was gone, later than without a bound, and as surely
(docs/log/decentralized.md).

The sketch (ClippedGossip: He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via self-centered
clipping, 2022): the difference that a node takes from a peer's copy is clipped to a radius in steps of the node itself,
which no peer decides. Honest peers are so many steps away as the codec and the graph make it, at most 3.1 with every
number and 6.3 with one bit, with up to sixteen nodes. In larger swarms it may be more. So the radius follows the usual
distance too, over many turns. A hostile peer at the radius makes about half of it usual, so less than twice the usual
distance does not let it raise the radius. Usual is the lower median over the edges: with two peers the nearer counts.

Between honest nodes nothing is clipped. So both ends of a turn take the same difference with opposite signs, and the
mean stays. Nodes that have been apart come together in several turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.blocks import Blocks

RADIUS = 8.0
"""Steps of the node: more than the distance of honest nodes with one bit. With twelve, a hostile peer at the radius
undid all that the others learned."""
RADIUS_WHOLE_NUMBERS = 4.0
"""The same for codecs that keep every number."""
WHOLE_NUMBERS = frozenset({"dense", "bf16", "int8"})
FOLLOWS = 1.75
"""Times the usual distance over many turns, if that is more. Of honest nodes, single turns were at most at 1.6."""
MEMORY = 1 / 64
"""Share of the newest turn in the usual distance."""
BLOCK_FACTOR = 2.5
"""Of a block's own steps. A bound on the whole alone would let a peer put all of it into a few vectors."""
BLOCK_LEAST = 0.5
"""Of the mean of all blocks: a row that was not used for long has hardly a step of its own, until it is used."""
PULL_FACTOR = 2.0
"""Of the radius, for copies that pull a gradient: they may be a cycle old. Nothing of them stays in the parameters."""
FAR_TURNS = 32
"""A peer that is beyond the radius for so many turns in a row is left out. One that was apart is back by then."""
ABSURD = 100.0
"""Times the radius: a peer beyond it is left out at once. It would have trained by itself for hundreds of steps."""
STEP_MEMORY = 0.05
"""Share of the newest step in the usual size of a step: distances shrink more slowly than steps do."""
STEP_DECAY = 0.99
"""Of the largest step of a block, in each iteration."""


def radius_of(codec: str) -> float:
    """The radius in steps."""
    return RADIUS_WHOLE_NUMBERS if codec in WHOLE_NUMBERS else RADIUS


class MixBounds:
    """What one node knows of its own steps and of its peers' distances. radius: see `radius_of`.

    Before its first step, a node takes nothing that differs: in the beginning, nothing does."""

    def __init__(self, layout: TileLayout, radius: float) -> None:
        self._blocks = Blocks(layout)
        self._even = (self._blocks.lengths / max(1, layout.parameters)).sqrt().to(torch.float32)  # shares of a norm
        self._radius = radius
        self._steps = torch.zeros(self._blocks.count)  # of each block the largest recent one, float32 [blocks]
        self._square = 0.0  # the mean square of the steps' norms
        self._newest = 0.0  # the newest step's norm
        self._usual = 0.0  # distance in steps
        self._near: dict[int, float] = {}  # by peer, its newest distance in steps
        self._far: dict[int, int] = {}  # by peer, turns in a row

    def stepped(self, step: Tensor) -> None:
        """The node has stepped, float32 [parameters]."""
        norms = self._blocks.norms(step)
        if bool(norms.isfinite().all()):
            if not 0 < self._square < math.inf:  # it is the first
                self._square, self._steps = _norm(norms) ** 2, torch.zeros_like(norms)
            self._newest = _norm(norms)
            self._square += STEP_MEMORY * (self._newest**2 - self._square)
            self._steps = torch.maximum(norms, self._steps.mul(STEP_DECAY))

    @property
    def _step(self) -> float:
        return max(self._newest, math.sqrt(self._square))

    def clip_(self, peer: int, difference: Tensor) -> Tensor:
        """Clip the difference of a turn with a peer in place, float32 [parameters]. Raises
        PayloadError if the peer is to be left out."""
        near, radius = self._blocks.norms(difference), self.radius()
        distance = _norm(near)
        self._check(peer, distance, radius)
        if 0 < self._step < math.inf:
            self._near[peer] = min(distance, radius) / self._step
            newest = sorted(self._near.values())[(len(self._near) - 1) // 2]
            self._usual += MEMORY * (newest - self._usual)
        return self._clip_(difference, near, radius)

    def clipped_copy(self, x: Tensor, theirs: Tensor) -> Tensor:
        """The copy of a peer, or one that is nearer to x, to pull a gradient."""
        near, radius = self._blocks.distances(theirs, x), PULL_FACTOR * self.radius()
        if _norm(near) <= radius and bool((near <= self._of_blocks(radius)).all()):
            return theirs
        return self._clip_(theirs - x, near, radius).add_(x)

    def radius(self) -> float:
        """The largest distance of a peer, as a norm over all parameters."""
        return max(self._radius, FOLLOWS * self._usual) * self._step if self._step else 0.0

    def forget(self, peer: int) -> None:
        """The edge with this peer has ended."""
        self._near.pop(peer, None)
        self._far.pop(peer, None)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, as it is saved."""
        edges = [[peer, self._near.get(peer, math.nan), turns] for peer, turns in sorted(self._far.items())]
        numbers = torch.tensor([[self._usual, self._square, self._newest], *edges], dtype=torch.float64)
        return {"bounds steps": self._steps, "bounds edges": numbers}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `tensors`."""
        self._steps = tensors["bounds steps"]
        (self._usual, self._square, self._newest), *edges = tensors["bounds edges"].tolist()
        self._near = {int(peer): near for peer, near, _ in edges if not math.isnan(near)}
        self._far = {int(peer): int(turns) for peer, _, turns in edges}

    def _check(self, peer: int, distance: float, radius: float) -> None:
        if not math.isfinite(distance):
            raise PayloadError("its parameters are not finite, or beyond all bounds")
        if not distance > radius > 0:
            self._far[peer] = 0
            return
        self._far[peer] = self._far.get(peer, 0) + 1
        steps, allowed = distance / self._step, radius / self._step
        if distance > ABSURD * radius:
            raise PayloadError(f"its parameters are {steps:,.0f} steps away; at most {allowed:,.0f} are mixed")
        if self._far[peer] >= FAR_TURNS:
            raise PayloadError(
                f"for {FAR_TURNS} turns in a row, its parameters were more than {allowed:,.0f} steps away, and could "
                f"not be mixed whole; now they are {steps:,.0f} steps away"
            )

    def _of_blocks(self, radius: float) -> Tensor:
        """The largest distance of each block, float32 [blocks]."""
        step = _norm(self._steps)
        if step == 0:
            return torch.full_like(self._steps, radius)
        return torch.maximum(self._steps, self._even * (BLOCK_LEAST * step)) * (BLOCK_FACTOR * radius / step)

    def _clip_(self, difference: Tensor, near: Tensor, radius: float) -> Tensor:
        limits, distance = self._of_blocks(radius), _norm(near)
        if distance > radius or bool((near > limits).any()):
            scales = torch.where(near > limits, limits / near, 1.0)
            self._blocks.scale_(difference, scales)
            if (left := _norm(near * scales)) > radius:
                difference.mul_(radius / left)
        return difference


def _norm(near: Tensor) -> float:
    return float(near.double().norm())
