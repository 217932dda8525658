"""The contract's section `schedule`: the learning rate over the run."""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from thinwire_proto.contract.sections import Section, unit

RATE_MIN = float(np.finfo(np.float32).tiny)
"""The smallest rate of an update above 0, 2⁻¹²⁶: smaller float32 numbers are subnormal, and nodes refuse them."""


class ScheduleSpec(Section):
    """Linear warm-up, then cosine decay to `floor` times the peak. It depends on the step, not on the round."""

    learning_rate: float = Field(2e-3, gt=0, le=1, description="peak of the learning rate, after the warm-up")
    warmup_steps: int = Field(
        50, ge=0, description="steps in which the rate rises from 0 to its peak", json_schema_extra=unit("steps")
    )
    steps: int = Field(200, ge=1, le=1 << 31, description="updates of the whole run", json_schema_extra=unit("steps"))
    floor: float = Field(0.1, ge=0, le=1, description="rate at the end, as a fraction of the peak")
    weight_decay: float = Field(
        0.0, ge=0, description="each step multiplies every parameter by 1 − rate · weight_decay"
    )

    @model_validator(mode="after")
    def _relations(self) -> ScheduleSpec:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps must be less than steps; {self.warmup_steps} is not less than {self.steps}")
        sent = float(np.float32(self.learning_rate))  # nodes get the rate as a float32, which can be larger
        if sent < RATE_MIN:
            raise ValueError(f"learning_rate must be at least {RATE_MIN:.4g}, the smallest normal float32")
        if max(sent, self.learning_rate) * self.weight_decay >= 1:
            raise ValueError("learning_rate · weight_decay must be less than 1, or parameters change their sign")
        return self
