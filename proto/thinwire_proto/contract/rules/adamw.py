"""The rule `adamw`: each node takes steps of AdamW by itself. For the exchange `gossip`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.rules import RULES, RuleSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import unit


@RULES.register(since="0.3.0")
class AdamWSpec(RuleSpec):
    """Each node takes steps of AdamW by itself, at the rate of the schedule. `schedule.steps` counts its iterations."""

    RATE_OVER_DEMO: ClassVar[float] = 1.5
    """0.003 over 0.002."""

    kind: Literal["adamw"] = "adamw"
    samples: int = Field(
        8,
        ge=1,
        le=1 << 20,
        description="samples of an iteration",
        json_schema_extra=unit("samples"),
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment")

    def samples_at_most(self, of_a_round: int) -> int:
        return self.samples  # there are no rounds

    def check(self, demo: DemoSpec, schedule: ScheduleSpec) -> None:
        if self.outer_rate != 1.0:
            raise ValueError(f'rule.outer_rate has no meaning for rule.kind = "adamw"; it is {self.outer_rate}')
