"""Measures how well an audit tells an honest contribution from one that does not come from its node's lease.

    python -m bench.adversary.audit_power

A swarm in this process trains the byte model. Every few rounds, the nodes are audited in pairs, with the coordinator's
own functions: once with the right votes, and once with the votes of a third node in their place, which agree with the
swarm as well as any, but come from another lease. A row is one setting. `as trained` recomputes the gradient in the
same arithmetic; the other rows with more threads, in bfloat16, or from nodes whose parameters are some steps older.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.convergence.arms import ARMS
from bench.convergence.compressed import make_contract
from bench.convergence.problem import Problem
from bench.convergence.text import stdlib
from bench.markdown import table
from thinwire.compression.momentum import Momentum
from thinwire_coordinator.star.trust.audit import audited, components_of
from thinwire_coordinator.star.trust.auditing import Difference
from thinwire_coordinator.star.trust.ballots import Ballot
from thinwire_coordinator.star.trust.sequential import ALARM, added, audit_step
from thinwire_proto.contract import DecoderSpec, ScheduleSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes, merge

ROUNDS = 60
EVERY = 3
WARM = 8
"""Rounds before the first audit."""
TRIALS = 2000
AUDITS_MAX = 400


@dataclass(frozen=True)
class Setting:
    """A swarm, and how the coordinator recomputes. k: that its nodes share. samples: of a node in a round. age: steps
    that the node's base is older than the parameters of the audit."""

    nodes: int = 16
    samples: int = 4
    k: int = 176
    arithmetic: str = "as trained"
    age: int = 0
    width: int = 64
    layers: int = 2
    context: int = 64


@dataclass
class Found:
    """The z of audits: of honest contributions, and of votes that come from another lease."""

    honest: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    votes: int = 0


class Otherwise(Problem):
    """A problem whose gradients are computed in other arithmetic than float32 on one thread."""

    arithmetic = ""

    def gradients(self, first: int, samples: int) -> tuple[float, dict[str, Tensor]]:
        threads = torch.get_num_threads()
        torch.set_num_threads(2 if self.arithmetic == "2 threads" else threads)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.arithmetic == "bfloat16"):
            loss = self._model.loss(self._samples(first, samples))
        found = torch.autograd.grad(loss, list(self.parameters.values()))
        torch.set_num_threads(threads)
        return loss.item(), dict(zip(self.parameters, found, strict=True))


class Measured:
    """A swarm in training whose contributions are audited. problems: what its nodes train on, and what the coordinator
    recomputes with."""

    def __init__(self, setting: Setting, rounds: int, problems: tuple[Problem, Problem]) -> None:
        self._setting, self._rounds = setting, rounds
        self._problem, self._otherwise = problems
        self._schedule = ScheduleSpec(steps=2 * rounds, warmup_steps=min(10, rounds), learning_rate=3e-3)
        self._contract = make_contract(self._problem, ARMS["thinwire"], self._schedule)
        tensors = {name: tensor.data for name, tensor in self._problem.parameters.items()}
        self._replica = Replica(self._contract, tensors, 0, b"")
        self._problem.put(self._replica.tensors)
        self._k = max(1, setting.k // setting.nodes)
        demo = self._contract.demo.model_copy(update={"k": self._k, "update_topk": 0})
        self._nodes = [Momentum(self._replica.layout, demo, "cpu") for _ in range(setting.nodes)]
        self._older: deque[dict[str, Tensor]] = deque(maxlen=setting.age + 1)
        self._earlier: deque[Ballot] = deque(maxlen=2 * setting.nodes)
        self.found = Found()

    def found_of(self, node: str) -> Found:
        """The findings that a node's audits are added to."""
        return self.found

    def run(self) -> Found:
        for step in range(self._rounds):
            self._round(step)
        return self.found

    def _round(self, step: int) -> None:
        setting, rate = self._setting, learning_rate(self._schedule, step)
        self._older.append({name: tensor.clone() for name, tensor in self._replica.tensors.items()})
        ballots, gradients = [], []
        for number, node in enumerate(self._nodes):
            found = self._gradient(step, number)
            gradients.append({name: tensor.clone() for name, tensor in found.items()})
            votes = node.accumulate_and_extract(found, rate, 1, self._k).votes()
            ballots.append(Ballot(f"n{number}", votes.components, votes.positive))
        if step >= WARM and step % EVERY == 0 and len(self._older) > setting.age:
            self._audit(step, ballots, gradients)
        self._earlier.extend(ballots)
        merged = merge(
            ((Votes(ballot.components, ballot.positive), 1) for ballot in ballots), self._replica.layout.components
        )
        self._replica.apply(Update(step, rate, decay(self._schedule, step), merged), b"")

    def _gradient(self, step: int, number: int) -> dict[str, Tensor]:
        """On the parameters that the node has, which may be older than those of the audit."""
        setting = self._setting
        self._problem.put(self._older[0] if len(self._older) > setting.age else self._replica.tensors)
        first = (step * setting.nodes + number) * setting.samples
        found = self._problem.gradients(first, setting.samples)[1]
        self._problem.put(self._replica.tensors)
        return found

    def _recomputed(self, step: int, number: int, trained: dict[str, Tensor]) -> dict[str, Tensor]:
        setting = self._setting
        if setting.arithmetic == "as trained" and not setting.age:
            return {name: tensor.clone() for name, tensor in trained.items()}
        self._otherwise.put(self._replica.tensors)
        return self._otherwise.gradients((step * setting.nodes + number) * setting.samples, setting.samples)[1]

    def _audit(self, step: int, ballots: list[Ballot], gradients: list[dict[str, Tensor]]) -> None:
        count = len(ballots)
        for place in range(0, count - 1, 2):
            own, other = ballots[place], ballots[place + 1]
            third = (place + 2) % count if count > 2 else None
            others = [ballot for number, ballot in enumerate(ballots) if number not in (place, place + 1, third)]
            references = [*others, *list(self._earlier)[-max(0, 16 - len(others)) :]][:32]
            components = components_of([*ballots, *references], self._replica.layout.components)
            recomputed = [self._recomputed(step, number, gradients[number]) for number in (place, place + 1)]
            layout = self._replica.layout
            found = Difference(components, layout)
            for tensor in layout.tensors:
                found.take_first(tensor, recomputed[0][tensor.name])
                found.take_second(tensor, recomputed[1][tensor.name])
            pair = audited(own, other, references, components, found.values)
            for one in pair:
                self.found_of(one.node).honest.append(one.z)
                self.found_of(one.node).votes = len(own)
            if third is not None:
                copied = audited(ballots[third], other, references, components, found.values)
                self.found_of(ballots[third].node).other.extend(one.z for one in copied[:1])


def of_decoder(setting: Setting, rounds: int, seed: int = 0) -> Measured:
    """A swarm that trains the byte model."""
    spec = DecoderSpec(
        width=setting.width, layers=setting.layers, heads=2, hidden=2 * setting.width, context=setting.context
    )
    otherwise = Otherwise(spec, stdlib(), seed, torch.device("cpu"))
    otherwise.arithmetic = setting.arithmetic
    return Measured(setting, rounds, (Problem(spec, stdlib(), seed, torch.device("cpu")), otherwise))


def power(found: Found, audits: int, rng: torch.Generator, false_alarm: float = 0.01) -> float:
    """How probable it is that the mean z of so many audits of such a node is below the bound that a share
    `false_alarm` of the honest nodes falls below."""
    honest = _means(found.honest, audits, rng)
    bound = sorted(honest)[int(false_alarm * len(honest))]
    return sum(mean < bound for mean in _means(found.other, audits, rng)) / TRIALS


def _means(values: list[float], audits: int, rng: torch.Generator) -> list[float]:
    drawn = torch.randint(len(values), (TRIALS, audits), generator=rng)
    return torch.tensor(values)[drawn].mean(1).tolist()


def to_alarm(found: Found, values: list[float], rng: torch.Generator) -> float:
    """Mean number of audits until `sequential` suspects a node with these z; infinite if most are never suspected."""
    typical, counts = statistics.median(found.honest), []
    for _ in range(200):
        total, count = 0.0, 0
        while total < ALARM and count < AUDITS_MAX:
            z = values[int(torch.randint(len(values), (1,), generator=rng))]
            total, count = added(total, audit_step(z, typical)), count + 1
        counts.append(count if total >= ALARM else math.inf)
    return statistics.median(counts)


SETTINGS = (
    *(Setting(samples=samples) for samples in (1, 2, 4, 8)),
    *(Setting(nodes=nodes) for nodes in (2, 4, 8)),
    *(Setting(k=k) for k in (64, 704)),
    *(Setting(arithmetic=name) for name in ("2 threads", "bfloat16")),
    *(Setting(age=age) for age in (1, 2)),
    Setting(width=128, layers=4, context=128),
)


def row(setting: Setting, found: Found) -> list[str]:
    rng = torch.Generator().manual_seed(0)
    mean, spread = statistics.mean(found.honest), statistics.stdev(found.honest)
    cells = [f"{setting.width}×{setting.layers}", str(setting.nodes), str(setting.samples), str(setting.k)]
    cells += [setting.arithmetic, str(setting.age), str(found.votes), f"{mean:.2f} ± {spread:.2f}"]
    if len(found.other) > 1:
        cells += [f"{statistics.mean(found.other):.2f} ± {statistics.stdev(found.other):.2f}"]
        cells += [f"{power(found, audits, rng):.0%}" for audits in (1, 4, 16)]
        alarm, honest = to_alarm(found, found.other, rng), to_alarm(found, found.honest, rng)
        cells += [f"{alarm:.0f}", "never" if math.isinf(honest) else f"{honest:.0f}"]
    else:
        cells += ["–"] * 6
    return cells


HEAD = (
    *("model", "nodes", "samples", "k", "recomputed", "age", "votes", "z of honest votes", "z of others' votes"),
    *("found after 1", "after 4", "after 16", "audits to suspicion", "of an honest node"),
)


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for setting in SETTINGS:
        rows.append(row(setting, of_decoder(setting, ROUNDS).run()))
        print(f"{len(rows)} of {len(SETTINGS)}", file=sys.stderr, flush=True)
    print(table(HEAD, rows), end="")


if __name__ == "__main__":
    main()
