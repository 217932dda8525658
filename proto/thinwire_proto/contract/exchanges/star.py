"""The exchange `star`: one coordinator merges the contributions of all nodes, seals updates and serves them."""

from __future__ import annotations

from typing import Literal

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec


@EXCHANGES.register
class StarSpec(ExchangeSpec):
    """One coordinator merges the contributions of all nodes, seals updates and serves them."""

    kind: Literal["star"] = "star"

    def check(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec) -> None:
        if isinstance(rule, OwnStepsSpec):
            raise ValueError(
                f'rule.kind = "{rule.kind}" needs exchange.kind = "gossip", where each node steps by itself'
            )
