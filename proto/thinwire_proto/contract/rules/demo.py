"""The rule `demo`: gradients are summed, and their mean is added to the momentum."""

from __future__ import annotations

from typing import Literal

from thinwire_proto.contract.rules import RULES, VotingRuleSpec


@RULES.register
class DemoRuleSpec(VotingRuleSpec):
    """Gradients are summed, and their mean is added to the momentum."""

    kind: Literal["demo"] = "demo"
