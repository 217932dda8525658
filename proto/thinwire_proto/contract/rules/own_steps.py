"""The base of the rules of nodes that step by themselves, for the exchange `gossip`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.sections import unit


class OwnStepsSpec(RuleSpec):
    """A node takes one step in each iteration, and sends parameters in place of gradients. `schedule.steps` counts its
    iterations."""

    STEPS_ALONE: ClassVar[bool] = True

    samples: int = Field(8, ge=1, le=1 << 20, json_schema_extra=unit("samples"))
    """samples of an iteration"""

    def samples_at_most(self, of_a_round: int) -> int:
        return self.samples  # there are no rounds
