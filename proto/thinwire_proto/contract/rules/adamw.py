"""The rule `adamw`: each node takes steps of AdamW by itself. For the exchange `gossip`."""

from __future__ import annotations

from typing import ClassVar, Literal

from thinwire_proto.contract.rules import RULES
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec


@RULES.register
class AdamWSpec(OwnStepsSpec):
    """Each node takes steps of AdamW by itself, at the rate of the schedule. `schedule.steps` counts its iterations."""

    RATE_OVER_DEMO: ClassVar[float] = 1.5
    """0.003 over 0.002."""

    kind: Literal["adamw"] = "adamw"
