"""The base of the rules of nodes that step by themselves, for the exchange `gossip`."""

from __future__ import annotations

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import unit


class OwnStepsSpec(RuleSpec):
    """A node takes one step in each iteration, and sends parameters in place of gradients. `schedule.steps` counts its
    iterations."""

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
            raise ValueError(f'rule.outer_rate has no meaning for rule.kind = "{self.kind}"; it is {self.outer_rate}')
