"""The exchange `gossip`: each node steps by itself, and averages its parameters with a few others."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.contract.sections import unit


@EXCHANGES.register
class GossipSpec(ExchangeSpec):
    """Each node steps by itself, and averages its parameters with a few others. docs/decentralized.md describes it."""

    kind: Literal["gossip"] = "gossip"
    topology: Literal[
        "alternating-exponential-ring",
        "complete",
        "matching",
        "one-peer-exponential",
        "random-regular",
        "ring",
    ] = Field("one-peer-exponential", description="who mixes with whom in each iteration")
    codec: Literal["dense", "bf16", "int8", "sign"] = Field("sign", description="what a message carries")
    gamma: float = Field(
        1.0, gt=0, le=1, description="γ: the fraction of the way to the peers' copies that mixing goes"
    )
    gradient_pull: float = Field(
        0.0,
        ge=0,
        le=1,
        description="part of the way, from a node's own parameters to the mean of them and of what it knows of its "
        "peers, at which it computes gradients; costs no byte; 0: at its own",
    )
    slack: int = Field(
        0,
        ge=0,
        le=4,  # gossip.iteration.SLACK_MAX
        description="iterations that a message may be late before a node waits for it",
        json_schema_extra=unit("iterations"),
    )
    patience_ms: int = Field(
        30_000,
        ge=100,
        le=3_600_000,
        description="a node waits at most so long in an iteration for its peers",
        json_schema_extra=unit("ms"),
    )

    def check(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec) -> None:
        if not isinstance(rule, OwnStepsSpec):
            raise ValueError(
                'exchange.kind = "gossip" needs rule.kind = "adamw" or "muon", because each node steps by itself; it '
                f'is "{rule.kind}"'
            )
