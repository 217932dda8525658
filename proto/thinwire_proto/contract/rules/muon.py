"""The rule `muon`: each node takes steps of Muon by itself. For the exchange `gossip`."""

from __future__ import annotations

from typing import ClassVar, Literal

from thinwire_proto.contract.rules import RULES
from thinwire_proto.contract.rules.muon_steps import MuonStepsSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec


@RULES.register
class MuonSpec(MuonStepsSpec, OwnStepsSpec):
    """Each node takes steps of Muon by itself. `schedule.learning_rate` is that of the matrices, and `schedule.steps`
    counts its iterations."""

    RATE_OVER_DEMO: ClassVar[float] = 7.5
    """0.015 over 0.002, with 16 nodes (docs/log/decentralized.md)."""

    kind: Literal["muon"] = "muon"
