"""The settings of a gossip run, from the contract."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire_coordinator.gossip.directory import DirectorySettings
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec

LEASE_BEATS = 4
"""A lease lasts so long, at the node's own pace: so long iterations go on without the coordinator."""
LEASE_FIRST = 64
"""Iterations of a lease while no pace is known. The node reports soon, and then its computing tells one."""
LEASE_SAMPLES_MAX = 1 << 20
LEASE_RUNS_MAX = 24
"""Ranges of a lease that an answer names; the rest follows in later ones. Bounds the answer's size."""
REPORTS_OF_A_NODE = 4
"""Reports of a node that one row seals; more than that come too soon."""


@dataclass(frozen=True)
class GossipSettings:
    """samples: of an iteration. patience_s: for the parameters of the last nodes at the end. absent_s: after so long,
    an absent node's lease goes to others. codec: of messages."""

    directory: DirectorySettings
    samples: int
    patience_s: float
    absent_s: float
    codec: str

    @property
    def steps(self) -> int:
        return self.directory.steps

    @property
    def beat_s(self) -> float:
        return self.directory.beat_s

    def lease_samples(self, pace: float | None, iteration: int) -> int:
        """Samples that a node shall have, at its pace, in iterations a second; None while unknown. Too many are only
        kept from others for a while, and too few make the node, and then its peers, wait."""
        iterations = max(2, math.ceil(LEASE_BEATS * self.beat_s * pace)) if pace else LEASE_FIRST
        return min(min(iterations, max(0, self.steps - iteration)) * self.samples, LEASE_SAMPLES_MAX)


def gossip_settings(contract: Contract, wait_for: int) -> GossipSettings:
    """wait_for: as `--wait-for`."""
    exchange, rule, rounds = contract.exchange, contract.rule, contract.round
    assert isinstance(exchange, GossipSpec)
    assert isinstance(rule, OwnStepsSpec)
    directory = DirectorySettings(
        topology=exchange.topology,
        nodes_least=max(wait_for, rounds.min_contributions),
        nodes_max=rounds.nodes_max,
        beat_s=rounds.length_s,
        steps=contract.schedule.steps,
    )
    absent_s = max(rounds.momentum_age_max * rounds.length_s, directory.lost_after_s)
    return GossipSettings(directory, rule.samples, exchange.patience_ms / 1000, absent_s, exchange.codec)
