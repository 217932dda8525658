"""Kinds of local rules, each a file of this package: what a node does with its gradients between two extractions.

docs/local-rules.md describes them. `thinwire_node.training.rule` runs them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class RuleSpec(KindSpec):
    """What all local rules have."""

    DEMO_DEFAULTS: ClassVar[dict[str, Any]] = {}
    """Keys of the section `demo` whose defaults differ under this rule."""

    outer_rate: float = Field(1.0, ge=1e-3, le=16, description="of updates with magnitudes: what their mean is times")

    def micro_batch_max(self, allowed: int) -> int:
        """The most samples of a micro-batch, on a node whose owner allows so many."""
        return allowed

    def check(self, demo: DemoSpec, schedule: ScheduleSpec) -> None:
        """Raise ValueError if the rule cannot work with these."""
        if demo.magnitude != "tile" and self.outer_rate != 1.0:
            raise ValueError(
                'rule.outer_rate needs demo.magnitude = "tile": any other steps by schedule.learning_rate; '
                f"it is {self.outer_rate}"
            )


RULES: TaggedUnion[RuleSpec] = TaggedUnion("rule", RuleSpec, default="demo", home=__name__)
