"""Arms that exchange little: DeMo as published, and thinwire.

thinwire's contributions and updates are really encoded with the swarms' codec, so their bytes are counted, not
estimated. The reference is charged the format of its published code, an int64 and a float32 a component: each node
sends its own once and receives everybody else's once.
"""

from __future__ import annotations

import torch

from bench.convergence.arms import Arm
from bench.convergence.method import NodeTraffic, SwarmSize, mean
from bench.convergence.problem import Problem
from thinwire.compression.published import BYTES_A_COMPONENT, PublishedMomentum, components
from thinwire.compression.residual import dropped_part
from thinwire_coordinator.planning.star.growth import levels_at
from thinwire_node.star.rules import make_rule
from thinwire_proto.contract import Contract, CorpusSpec, Parameter, RoundSpec, ScheduleSpec
from thinwire_proto.contract.exchanges.star import most_nodes
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged
from thinwire_proto.wire.codec import encode_update, encode_votes


class PublishedMethod:
    """DeMo as published, in float."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm = problem, schedule, swarm
        shapes = {name: tuple(tensor.shape) for name, tensor in problem.parameters.items()}
        demo = arm.demo
        self._nodes = [
            PublishedMomentum(shapes, beta=demo.beta, k=demo.k, device=problem.device) for _ in range(swarm.nodes)
        ]

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        rate, share = learning_rate(self._schedule, step), self._swarm.share
        losses, sent = [], []
        for number, node in enumerate(self._nodes):
            loss, gradients = self._problem.gradients(first + number * share, share)
            node.accumulate(gradients, rate)
            sent.append(node.extract())
            losses.append(loss)
        with torch.no_grad():
            for name, direction in self._nodes[0].step_of(sent).items():
                self._problem.parameters[name].sub_(direction, alpha=rate)
        own = float(BYTES_A_COMPONENT * components(sent[0]))
        return mean(losses), NodeTraffic(own, own * (len(sent) - 1))


class SwarmMethod:
    """The method of a swarm: a local rule for each node, the exact merge, and one replica for all, since all replicas
    are equal. A node takes H local steps a round."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm, self._steps = problem, schedule, swarm, arm.local_steps
        self._arm = arm
        self._contract = make_contract(problem, arm, schedule)
        tensors = {name: tensor.data for name, tensor in problem.parameters.items()}
        self._replica = Replica(self._contract, tensors, 0, b"")
        self._local = {name: tensor.clone() for name, tensor in tensors.items()}  # used by one node after the other
        layout = self._replica.layout
        self._nodes = [make_rule(self._contract, layout, problem.device) for _ in range(swarm.nodes)]

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        layout, demo, schedule = self._replica.layout, self._contract.demo, self._schedule
        losses, sent = [], []
        self._problem.put(self._local)
        for number, node in enumerate(self._nodes):
            for name, tensor in self._local.items():
                tensor.copy_(self._replica.tensors[name])
            for inner in range(self._steps):
                position = first + inner * self._swarm.samples + number * self._swarm.share
                loss, gradients = self._problem.gradients(position, self._swarm.share)
                node.learn(self._local, gradients, self._swarm.share, learning_rate(schedule, step + inner))
                losses.append(loss)
            sent.append(node.extract(demo.k, learning_rate(schedule, step)))
        self._problem.put(self._replica.tensors)
        votes, merger = [one.votes() for one in sent], merger_of(self._contract, layout, self._replica.step)
        for one in votes:
            merger.add(one, 1)
        merged = merger.merged()
        for node, own in zip(self._nodes, sent, strict=True):
            if isinstance(merged, Merged) and (part := dropped_part(own, merged, layout, demo.update_topk)):
                node.put_back(part)
        update = Update(self._replica.step, learning_rate(schedule, step), decay(schedule, step), merged)
        self._replica.apply(update, b"")
        up = mean([float(len(encode_votes(one, layout))) for one in votes])
        return mean(losses), NodeTraffic(up, len(encode_update(update, layout)))

    def grow(self, schedule: ScheduleSpec, swarm: SwarmSize, times: int) -> None:
        self._schedule, self._swarm = schedule, swarm
        contract = self._contract
        self._contract = contract.model_copy(update={"demo": levels_at(self._arm.demo, times, self._arm.fine_from)})
        for node in self._nodes:
            node.amend(self._contract)


def make_contract(problem: Problem, arm: Arm, schedule: ScheduleSpec) -> Contract:
    """The contract of a swarm that trains this model on this text."""
    size, rounds = len(problem.text.train), RoundSpec()
    nodes_max = min(rounds.nodes_max, most_nodes(arm.demo.largest_vote, rounds.weight_max))
    return Contract(
        round=rounds.model_copy(update={"nodes_max": nodes_max}),
        model=problem.spec,
        demo=levels_at(arm.demo, 1, arm.fine_from),
        rule=arm.rule,
        schedule=schedule,
        data=CorpusSpec(corpus_hash=problem.text.hash, corpus_bytes=size, train_bytes=size),
        parameters=tuple(
            Parameter(name=name, shape=tuple(tensor.shape)) for name, tensor in problem.parameters.items()
        ),
    )
