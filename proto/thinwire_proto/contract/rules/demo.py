"""The rule `demo`: gradients are summed, and their mean is added to the momentum."""

from __future__ import annotations

from typing import Literal

from thinwire_proto.contract.rules import RULES, OuterRateSpec


@RULES.register
class DemoRuleSpec(OuterRateSpec):
    """Gradients are summed, and their mean is added to the momentum."""

    kind: Literal["demo"] = "demo"
