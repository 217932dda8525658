"""The settings of a gossip run, from the contract."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.limits import LOST_AFTER_S

LEASE_BEATS = 4
"""A lease lasts so long, at the node's own pace: so long iterations go on without the coordinator."""
LEASE_FIRST = 64
"""Iterations of a lease while no pace is known. The node reports soon, and then its computing tells one."""
LEASE_SAMPLES_MAX = 1 << 20
LEASE_RUNS_MAX = 24
"""Ranges of a lease that an answer names; the rest follows in later ones. Bounds the answer's size."""
LOST_BEATS = 3
"""A node that is silent for so long, and for LOST_AFTER_S, is lost."""
REPORTS_OF_A_NODE = 4
"""Reports of a node that one row seals; more than that come too soon."""


@dataclass
class GossipSettings:
    """topology: its kind. nodes_least: nodes to wait for before the first one. steps: iterations of each node; an
    amendment changes them here, and all others read them here. samples: of an iteration. patience_s: for the parameters
    of the last nodes at the end. absent_s: after so long, an absent node's lease goes to others. codec: of messages."""

    topology: str
    nodes_least: int
    nodes_max: int
    beat_s: float
    steps: int
    samples: int
    patience_s: float
    absent_s: float
    codec: str

    @property
    def lost_after_s(self) -> float:
        return lost_after_s(self.beat_s)

    def lease_samples(self, pace: float | None, iteration: int) -> int:
        """Samples that a node shall have, at its pace, in iterations a second; None while unknown. Too many are only
        kept from others for a while, and too few make the node, and then its peers, wait."""
        iterations = max(2, math.ceil(LEASE_BEATS * self.beat_s * pace)) if pace else LEASE_FIRST
        return min(min(iterations, max(0, self.steps - iteration)) * self.samples, LEASE_SAMPLES_MAX)

    def iterations_of(self, samples: int) -> int:
        """The iterations for which a node may take these samples of its lease. The last one may have fewer than it
        should, because a node that has to pass over samples ends an iteration with what its lease has."""
        return math.ceil(samples / self.samples)


def lost_after_s(beat_s: float) -> float:
    return max(LOST_BEATS * beat_s, LOST_AFTER_S)


def gossip_settings(contract: Contract, wait_for: int) -> GossipSettings:
    """wait_for: as `--wait-for`."""
    exchange, rule, rounds = contract.exchange, contract.rule, contract.round
    assert isinstance(exchange, GossipSpec)
    assert isinstance(rule, OwnStepsSpec)
    return GossipSettings(
        topology=exchange.topology,
        nodes_least=max(wait_for, rounds.min_contributions),
        nodes_max=rounds.nodes_max,
        beat_s=rounds.length_s,
        steps=contract.schedule.steps,
        samples=rule.samples,
        patience_s=exchange.patience_ms / 1000,
        absent_s=max(rounds.momentum_age_max * rounds.length_s, lost_after_s(rounds.length_s)),
        codec=exchange.codec,
    )
