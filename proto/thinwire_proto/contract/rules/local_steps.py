"""The base of the rules with local steps."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.rules import OuterRateSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import AMENDABLE, unit


class LocalStepsSpec(OuterRateSpec):
    """A node takes local steps and sends the compressed difference of its parameters.

    A difference of parameters has a meaningful size, and the inner optimizer has preconditioned it already. This
    explains the changed defaults of `demo`.
    """

    DEMO_DEFAULTS: ClassVar[dict[str, Any]] = {"magnitude": "tile", "precondition": "none"}
    MORE_BYTES_A_PARAMETER: ClassVar[int] = 8
    """Five float32 values in place of three (docs/local-rules.md)."""
    OWN_MOMENT_BYTES_A_PARAMETER: ClassVar[int] = 8

    micro_batch: int = Field(8, ge=1, le=1 << 20, json_schema_extra=unit("samples") | AMENDABLE)
    """maximum number of samples per inner step"""

    def micro_batch_max(self, allowed: int) -> int:
        return min(allowed, self.micro_batch)

    def check(self, demo: DemoSpec, schedule: ScheduleSpec) -> None:
        super().check(demo, schedule)
        if demo.magnitude != "tile":
            raise ValueError(
                f'demo.magnitude must be "tile" for rule.kind = "{self.kind}", whose differences have a size; it is '
                f'"{demo.magnitude}"'
            )
        if demo.precondition != "none":
            raise ValueError(
                f'demo.precondition must be "none" for rule.kind = "{self.kind}", which preconditions each inner step; '
                f'it is "{demo.precondition}"'
            )
