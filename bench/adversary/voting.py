"""A swarm in one process, with the real compression, codec, merge, decode and replica, and with hostile nodes."""

from __future__ import annotations

import math

import numpy as np

from bench.adversary.attacks import ATTACKS, Knowledge
from bench.adversary.judge import Judge
from bench.adversary.level_attacks import LEVEL_ATTACKS
from bench.adversary.nodes import CPU, Nodes, begins, delivers
from bench.adversary.scene import Scene
from bench.convergence.arms import ARMS
from bench.convergence.compressed import make_contract
from thinwire.compression.residual import dropped_part
from thinwire.compression.sent import Sent
from thinwire_node.star.rules import make_rule
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, Votes
from thinwire_proto.wire.codec import decode_update, decode_votes, encode_update, encode_votes


class VotingSwarm:
    """Nodes that vote. judge: sets their weights; without one, all weigh the same."""

    def __init__(self, scene: Scene, nodes: Nodes, schedule: ScheduleSpec) -> None:
        self._scene, self._nodes, self._schedule = scene, nodes, schedule
        contract = make_contract(nodes.problem, ARMS[scene.arm], schedule)
        rounds = contract.round.model_copy(update=ARMS[scene.arm].rule.ROUND_DEFAULTS)
        demo = contract.demo
        if not demo.sends_whole_tiles:
            demo = demo.model_copy(update={"k": scene.size.k, "update_topk": scene.size.update_topk})
        self._contract = contract.model_copy(update={"demo": demo, "round": rounds})
        self._weight_max = self._contract.round.weight_max
        self._replica = Replica(self._contract, {n: t.data for n, t in nodes.problem.parameters.items()}, 0, b"")
        nodes.put(self._replica.tensors)
        present = scene.honest if scene.alone else scene.size.present
        self._k = self._contract.demo.k
        self._rules = [make_rule(self._contract, self._replica.layout, CPU) for _ in range(present)]
        self._under_way: dict[int, Sent] = {}
        self._earlier: dict[int, list[Votes]] = {number: [] for number in range(scene.honest, present)}
        self._drawn = np.random.default_rng(scene.seed)
        self.judge = Judge(present, self._weight_max, scene.seed) if scene.trusting else None

    @property
    def present(self) -> range:
        return range(len(self._rules))

    def round(self, turn: int) -> None:
        rate = learning_rate(self._schedule, turn)
        computed = {number: self._compute(number, turn, rate) for number in self.present if begins(number, turn)}
        self._under_way |= computed
        age_max = self._contract.round.base_age_max
        delivering = {
            number: self._under_way[number] for number in range(self._scene.honest) if delivers(number, turn, age_max)
        }
        honest = {number: one.votes() for number, one in delivering.items()}
        hostile = {number: self._attack(number, turn, honest) for number in self._earlier}
        sent = {number: self._over_the_wire(votes) for number, votes in self._in_order(honest, hostile)}
        merger = merger_of(self._contract, self._replica.layout, turn)
        weights = {number: self.weight(number) for number in sent}
        for number, votes in sent.items():
            if weights[number]:
                merger.add(votes, weights[number])
        if self.judge is not None:
            late = [number for number in self.present if number not in sent and not self._refused(number)]
            self.judge.observe(sent, late)
        layout, demo, merged = self._replica.layout, self._contract.demo, merger.merged()
        for number, one in delivering.items():
            if weights.get(number) and isinstance(merged, Merged):
                self._put_back(number, one, merged)
        body = encode_update(Update(turn, rate, decay(self._schedule, turn), merged), layout)
        self._replica.apply(decode_update(body, layout, demo.magnitude, demo.update_levels), b"")

    def _put_back(self, number: int, sent: Sent, merged: Merged) -> None:
        """Return to a counted node what the update has left out, as a node does."""
        if part := dropped_part(sent, merged, self._replica.layout, self._contract.demo.update_topk):
            self._rules[number].put_back(part)

    def weight(self, number: int) -> int:
        """The integer weight of a node's votes in the next round."""
        return self._weight_max if self.judge is None else math.ceil(self._weight_max * self.judge.weight(number))

    def _in_order(self, honest: dict[int, Votes], hostile: dict[int, Votes]) -> list[tuple[int, Votes]]:
        """Order contributions by arrival: at random, hostile nodes last, because they know what others sent."""
        order = [*self._drawn.permutation(list(honest)).tolist(), *self._drawn.permutation(list(hostile)).tolist()]
        return [(number, (honest | hostile)[number]) for number in order if not self._refused(number)]

    def _refused(self, number: int) -> bool:
        return self.judge is not None and self.judge.refuses(number)

    def _compute(self, number: int, turn: int, rate: float) -> Sent:
        gradients = self._nodes.gradients(number, turn)
        self._rules[number].learn({}, gradients, 1, rate)
        return self._rules[number].extract(self._k, rate)

    def _attack(self, number: int, turn: int, honest: dict[int, Votes]) -> Votes:
        known = Knowledge(
            number=number - self._scene.honest,
            round=turn,
            layout=self._replica.layout,
            k=self._k,
            own=self._under_way[number].votes(),
            earlier=self._earlier[number],
            others=list(honest.values()),
            drawn=self._drawn,
            agreed=np.random.default_rng([self._scene.seed, turn]),
        )
        attacks = LEVEL_ATTACKS if self._contract.demo.vote_levels else ATTACKS
        votes = attacks[self._scene.attack](known)
        self._earlier[number].append(known.own)
        return votes

    def _over_the_wire(self, votes: Votes) -> Votes:
        layout, demo = self._replica.layout, self._contract.demo
        data = encode_votes(votes, layout)
        return decode_votes(
            data, layout, self._k, demo.magnitude, whole=demo.sends_whole_tiles, levels=demo.vote_levels
        )
