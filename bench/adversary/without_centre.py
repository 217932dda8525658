"""`make bench-adversary EXCHANGE=gossip`: one hostile node of four in a gossip run, with bounds and without.

All nodes are real members in one process, in step: codecs, copies, mixing, bounds and the final mean are a swarm's own.
A hostile node knows everything, and changes its own parameters before its messages are made. Node 3 is hostile, and a
peer of nodes 1 and 2. Writes a table to the standard output.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.convergence.problem import Problem
from bench.convergence.text import stdlib
from bench.markdown import table
from bench.studies import carry_out
from thinwire_node.gossip.rules.adamw import AdamW
from thinwire_proto.contract import DecoderSpec, Parameter, ScheduleSpec
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.bounds import radius_of
from thinwire_proto.gossip.codec import tensors_of
from thinwire_proto.gossip.edges import FIRST_TOPOLOGY
from thinwire_proto.gossip.final_mean import PARAMETER_MAX, bounded_mean, final_mean, in_integers
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.topology import Layout, make_topology

NODES, HOSTILE = 4, 3
SAMPLES, ITERATIONS, HELD_OUT = 2, 120, 128
LEARNING_RATE, WARMUP, SEED = 3e-3, 20, 1
BEGINS = 40
"""Iterations in which a hostile node is honest."""
PATIENCE_S = 1.0
SPEC = DecoderSpec(width=64, layers=2, heads=2, hidden=96, context=64)
CODECS = ("dense", "sign")
NOBODY, ABSENT = "nobody", "absent"


class Swarm:
    """Nodes in step, one of which is hostile. attack: what it does; see ATTACKS."""

    def __init__(self, codec: str, attack: str, *, bounded: bool) -> None:
        self.attack, self.bounded = attack, bounded
        self.problem = Problem(SPEC, stdlib(), SEED, torch.device("cpu"))
        shapes = [Parameter(name=name, shape=tuple(one.shape)) for name, one in self.problem.parameters.items()]
        self.layout = TileLayout(shapes)
        self._first = torch.cat([one.detach().reshape(-1) for one in self.problem.parameters.values()])
        settings = MemberSettings(codec, 1.0, 0, PATIENCE_S, ITERATIONS, is_bounded=bounded)
        present = [node for node in range(NODES) if not (attack == ABSENT and node == HOSTILE)]
        self.members = {node: Member(self.layout, settings, self._first.clone()) for node in present}
        self._optimizers = {node: AdamW(self.layout.parameters, 0.9, 0.99) for node in present}
        self._radius = radius_of(codec)
        self.steps = dict.fromkeys(present, 0.0)
        self.left_out: dict[int, int] = {}  # by node, the iteration in which it left the hostile node out
        self.direction = torch.randn(self.layout.parameters, generator=torch.Generator().manual_seed(SEED)).sign()
        topology = make_topology("one-peer-exponential", Layout(len(present)))
        for node, member in self.members.items():
            cycle = tuple(dict(mixing.rows[node]) for mixing in topology.mixings)
            peers = {peer for turns in cycle for peer in turns}
            member.assign(Assignment(FIRST_TOPOLOGY, 0, node, cycle, dict.fromkeys(peers, FIRST_TOPOLOGY)))

    def run(self) -> None:
        schedule = ScheduleSpec(learning_rate=LEARNING_RATE, warmup_steps=WARMUP, steps=ITERATIONS)
        for iteration in range(ITERATIONS):
            self._exchange(iteration)
            for node, member in self.members.items():
                gradient = self.gradient(member.x, (iteration * NODES + node) * SAMPLES)
                mix = member.computed(0.0) or member.tick(2 * PATIENCE_S)
                assert mix is not None
                member.mix(mix)
                if member.unreadable():
                    self.left_out[node] = iteration
                rate = learning_rate(schedule, iteration)
                if self.attack == "sign flip" and node == HOSTILE and iteration >= BEGINS:
                    gradient.neg_()
                before = member.x.clone()
                self.steps[node] = self._optimizers[node].step(member.x, gradient, rate, 0.0)
                member.stepped(before.sub_(member.x))

    def _exchange(self, iteration: int) -> None:
        messages = []
        for node, member in self.members.items():  # the hostile one is the last, and knows those of the others
            if node == HOSTILE and iteration >= BEGINS and self.attack in SENDS:
                honest = member.x.clone()
                SENDS[self.attack](self, member.x, self._peer(iteration))
                messages += [(node, *one) for one in member.begin()]
                if self.attack != "drift":
                    member.x.copy_(honest)
            else:
                messages += [(node, *one) for one in member.begin()]
            member.state()
            member.saved()
        for node, peer, message in messages:
            self.members[peer].received(node, message)
            self.members[node].acknowledged(peer, self.members[peer].received_from(node))

    def _peer(self, iteration: int) -> int:
        return HOSTILE - 1 if iteration % 2 == 0 else HOSTILE - 2

    def radius(self, node: int) -> float:
        """The largest distance of a peer of a node."""
        bounds = self.members[node]._bounds
        return bounds.radius() if bounds is not None else self._radius * self.steps[node]

    def gradient(self, x: Tensor, first: int) -> Tensor:
        self.put(x)
        _, gradients = self.problem.gradients(first, SAMPLES)
        return torch.cat([gradients[name].reshape(-1) for name in self.problem.parameters])

    def put(self, x: Tensor) -> None:
        self.problem.put(dict(zip(self.problem.parameters, tensors_of(x, self.layout), strict=True)))

    def loss(self, x: Tensor) -> float:
        self.put(x)
        return self.problem.held_out_loss(HELD_OUT)

    def honest(self) -> list[Tensor]:
        return [member.x for node, member in self.members.items() if node != HOSTILE or self.attack == NOBODY]

    def mean(self) -> tuple[Tensor, dict[int, float]]:
        """The final mean, and who is left out of it."""
        sent = [member.x for member in self.members.values()]
        if self.attack == "deposit of 3.0":
            sent[HOSTILE] = torch.full_like(sent[HOSTILE], 3.0)
        elif self.attack in SENDS:
            sent[HOSTILE] = sent[HOSTILE].clone()
            SENDS[self.attack](self, sent[HOSTILE], HOSTILE - 1)
        if not self.bounded:
            return final_mean(map(in_integers, (x.nan_to_num().clamp(-PARAMETER_MAX, PARAMETER_MAX) for x in sent))), {}
        found = bounded_mean([lambda part, x=x: x[part] for x in sent], self.layout)  # type: ignore[misc]
        return found.mean, found.far


def thousand(swarm: Swarm, x: Tensor, peer: int) -> None:
    """Parameters of 1,000 in each message."""
    x.fill_(1e3)


def drift(swarm: Swarm, x: Tensor, peer: int) -> None:
    """One more step in each iteration, always in the same direction, drawn once; its own training goes on."""
    x.add_(swarm.direction, alpha=swarm.steps[HOSTILE] / math.sqrt(len(x)))


def shout(swarm: Swarm, x: Tensor, peer: int) -> None:
    """As far from the peer's parameters as a peer may be for ever, up the gradient of many samples."""
    _away(swarm, x, peer, 0.98)


def burst(swarm: Swarm, x: Tensor, peer: int) -> None:
    """Fifty times as far, until it is left out."""
    _away(swarm, x, peer, 50.0)


def _away(swarm: Swarm, x: Tensor, peer: int, times: float) -> None:
    theirs = swarm.members[peer].x
    up = swarm.gradient(theirs, 0).sign()
    x.copy_(theirs).add_(up, alpha=times * swarm.radius(peer) / math.sqrt(len(x)))


SENDS: dict[str, Callable[[Swarm, Tensor, int], None]] = {
    "parameters of 1e3": thousand,
    "slow drift": drift,
    "just below": shout,
    "loud": burst,
}
ATTACKS = ("deposit of 3.0", *SENDS, "sign flip")
ALSO_WITHOUT = ("deposit of 3.0", "parameters of 1e3", "loud")
"""Played without bounds too. Bounds change nothing of the others, or such a node would do as `loud` does."""


@dataclass(frozen=True)
class Outcome:
    """honest: held-out loss of the mean of the honest nodes. worst: of the worst of them. final: of the final mean."""

    codec: str
    attack: str
    bounded: bool
    honest: float
    worst: float
    final: float
    left_out: str


def play(scene: tuple[str, str, bool]) -> Outcome:
    codec, attack, bounded = scene
    swarm = Swarm(codec, attack, bounded=bounded)
    try:
        swarm.run()
    except LocalError:  # parameters that no codec can carry: training has diverged
        return Outcome(codec, attack, bounded, math.nan, math.nan, math.nan, "")
    honest = swarm.honest()
    mean, far = swarm.mean()
    losses = swarm.loss(torch.stack(honest).mean(0)), max(map(swarm.loss, honest)), swarm.loss(mean)
    words = [f"by node {node} in iteration {iteration}" for node, iteration in sorted(swarm.left_out.items())]
    words += [f"of the mean, {times:.3g} times as far" for node, times in far.items()]
    return Outcome(codec, attack, bounded, *losses, "; ".join(words))


def row_of(one: Outcome, alone: Outcome) -> list[str]:
    """The row of an outcome. alone: that of the same codec without the hostile node."""
    cells = []
    for name in ("honest", "worst", "final"):
        loss, against = getattr(one, name), getattr(alone, name)
        more = "" if one.attack == ABSENT else f" ({loss / against - 1:+.1%})"
        cells.append("diverged" if math.isnan(loss) else f"{loss:.3f}{more}")
    return [one.codec, one.attack, "yes" if one.bounded else "no", *cells, one.left_out]


def main() -> None:
    scenes = [
        (codec, attack, bounded)
        for codec in CODECS
        for attack in (ABSENT, NOBODY, *ATTACKS)
        for bounded in ((True, False) if attack in ALSO_WITHOUT else (True,))
    ]
    outcomes: dict[tuple[str, str, bool], Outcome] = {}

    def missing() -> list[tuple[str, str, bool]]:
        return [scene for scene in scenes if scene not in outcomes]

    for one in carry_out(play, missing, os.cpu_count() or 1):
        outcomes[one.codec, one.attack, one.bounded] = one
        print(f"{len(outcomes)}/{len(scenes)}", file=sys.stderr, flush=True)
    head = ("codec", "hostile node", "bounds", "honest nodes' mean", "worst honest node", "final mean", "left out")
    rows = (row_of(outcomes[scene], outcomes[scene[0], ABSENT, True]) for scene in scenes)
    print(table(head, rows), end="")


if __name__ == "__main__":
    main()
