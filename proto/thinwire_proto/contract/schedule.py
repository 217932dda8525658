"""The contract's section `schedule`: the learning rate over the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from thinwire_proto.contract.sections import AMENDABLE, Section, unit

RATE_MIN = float(np.finfo(np.float32).tiny)
"""The smallest rate of an update above 0, 2⁻¹²⁶: smaller float32 numbers are subnormal, and nodes refuse them."""
BENDS = frozenset({"steps", "warmup_steps", "shape", "floor"})
"""The keys that a schedule goes on from where it stands with, when an amendment changes them."""


class ScheduleSpec(Section):
    """Linear warm-up, then a decay to `floor` times the peak. It depends on the step, not on the round."""

    learning_rate: float = Field(2e-3, gt=0, le=1, json_schema_extra=AMENDABLE)
    """peak of the learning rate, after the warm-up"""
    warmup_steps: int = Field(50, ge=0, json_schema_extra=unit("steps") | AMENDABLE)
    """steps in which the rate rises to its peak, from 0 or from where it stands"""
    steps: int = Field(200, ge=1, le=1 << 31, json_schema_extra=unit("steps") | AMENDABLE)
    """updates of the whole run"""
    shape: Literal["cosine", "linear", "constant"] = Field("cosine", json_schema_extra=AMENDABLE)
    """how the rate falls to its floor; constant: not at all"""
    floor: float = Field(0.1, ge=0, le=1, json_schema_extra=AMENDABLE)
    """rate at the end, as a fraction of the peak"""
    weight_decay: float = Field(0.0, ge=0, json_schema_extra=AMENDABLE)
    """each step multiplies every parameter by 1 − rate · weight_decay"""

    start: float = Field(0.0, ge=0, le=1)
    """rate at the beginning, as a fraction of the peak; without a warm-up, above 0, the rate falls from there"""
    begun: int = Field(0, ge=0, le=1 << 31, json_schema_extra=unit("steps"))
    """steps of the schedule that are behind it where the run begins: those of a branch's parent"""

    _begin: int = PrivateAttr(0)
    _moved: int = PrivateAttr(0)

    @property
    def begin(self) -> int:
        """Where the schedule took its present course: step 0, or that of an amendment; below 0 in a branch that is
        still on its parent's. The warm-up counts from it."""
        return self._begin - self.begun

    @property
    def moved(self) -> int:
        """Steps by which all of it came later, since the run went back to earlier ones."""
        return self._moved

    @property
    def top(self) -> float:
        """The rate after the warm-up, as a fraction of the peak."""
        return self.start if (self.start or self._begin) and not self.warmup_steps else 1.0

    @property
    def warmup_end(self) -> int:
        """The first step after the warm-up."""
        return self.begin + self.warmup_steps

    def bent(self, changes: Mapping[str, Any], step: int, share: float) -> ScheduleSpec:
        """The schedule with changed keys from a step on. share: where the rate stands then, over the peak.

        If one of BENDS changes, it goes on from there without a jump. Raises ValueError, as pydantic does."""
        kept = self.model_dump()
        bends = not BENDS.isdisjoint(changes)
        if bends:
            kept |= {"start": min(1.0, share), "warmup_steps": max(0, self.warmup_end - step), "begun": 0}
        found = type(self).model_validate(kept | dict(changes))
        found._begin = step if bends else self._begin
        found._moved = self._moved
        if found.steps <= step and "steps" not in changes:
            raise ValueError(
                f"the run ends at step {found.steps}, so nothing is left to change; give schedule.steps too"
            )
        if found.steps <= step:
            raise ValueError(f"schedule.steps must be above {step}, where the run is; it is {found.steps}")
        if found.warmup_end >= found.steps:
            mend = (
                "fewer of them, or a larger schedule.steps"
                if "warmup_steps" in changes
                else "schedule.warmup_steps too"
            )
            raise ValueError(
                f"the warm-up must end before the run; from step {found.begin}, {found.warmup_steps} steps lead to "
                f"step {found.warmup_end} of {found.steps}; give {mend}"
            )
        return found

    def gone_back(self, to: int, step: int) -> ScheduleSpec:
        """The schedule of a run that stands at `step` with parameters for which it stood at step `to`. It goes
        on from there, or from where it took its present course if that was later, and ends as many steps later."""
        later = step - max(to, self._begin)
        kept = self.model_dump() | {"steps": self.steps + later}
        if not self.warmup_steps:
            kept["start"] = self.top  # a begin above 0 would give 0 another meaning
        found = type(self).model_validate(kept)
        found._begin, found._moved = self._begin + later, self._moved + later
        return found

    @model_validator(mode="after")
    def _relations(self) -> ScheduleSpec:
        if self.warmup_steps >= self.steps + self.begun:
            raise ValueError(f"warmup_steps must be less than steps; {self.warmup_steps} is not less than {self.steps}")
        sent = float(np.float32(self.learning_rate))  # nodes get the rate as a float32, which can be larger
        if sent < RATE_MIN:
            raise ValueError(f"learning_rate must be at least {RATE_MIN:.4g}, the smallest normal float32")
        if max(sent, self.learning_rate) * self.weight_decay >= 1:
            raise ValueError("learning_rate · weight_decay must be less than 1, or parameters change their sign")
        return self
