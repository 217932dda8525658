"""The rule `demo`: gradients are summed, and their mean is added to the momentum."""

from __future__ import annotations

from typing import ClassVar, Literal

from thinwire_proto.contract.rules import RULES, OuterRateSpec


@RULES.register
class DemoRuleSpec(OuterRateSpec):
    """Gradients are summed, and their mean is added to the momentum."""

    NEEDS_WHOLE: ClassVar[str] = ""

    kind: Literal["demo"] = "demo"
