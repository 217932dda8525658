"""Learning rate and decay of a step.

The coordinator computes them once and sends them as float32 bits, because the cosines of two machines can differ. Nodes
use this module only to scale the input of their own momentum.
"""

from __future__ import annotations

import math
import struct

from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.contract.schedule import RATE_MIN


def to_float32(value: float) -> float:
    """The nearest float32, as a Python float."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def learning_rate(schedule: ScheduleSpec, step: int) -> float:
    """η of the update that leads from θ_step to θ_{step+1}; linear warm-up, then the schedule's shape to the floor. A
    float32, and 0 where it would be subnormal, because nodes refuse a subnormal rate."""
    rate = to_float32(_rate(schedule, step))
    return rate if rate >= RATE_MIN else 0.0


def _rate(schedule: ScheduleSpec, step: int) -> float:
    peak, start = schedule.learning_rate, schedule.start
    if step < schedule.warmup_end:
        since = step - schedule.begin
        return peak * start + peak * (1 - start) * (since + 1) / (schedule.warmup_steps + 1)
    return peak * _share_after_warmup(schedule, step)


def _share_after_warmup(schedule: ScheduleSpec, step: int) -> float:
    """The rate over its peak, from the top of the schedule's present course to the floor."""
    top = schedule.top
    progress = min(1.0, (step - schedule.warmup_end) / (schedule.steps - schedule.warmup_end))
    if schedule.shape == "constant":
        return top
    if schedule.shape == "linear":
        return top + (schedule.floor - top) * progress
    return schedule.floor + (top - schedule.floor) * 0.5 * (1 + math.cos(math.pi * progress))


def share_reached(schedule: ScheduleSpec, step: int) -> float:
    """Where the rate stands as a step begins, as a fraction of the peak: in the warm-up, that of the step before."""
    if step < schedule.warmup_end:
        return schedule.start + (1 - schedule.start) * (step - schedule.begin) / (schedule.warmup_steps + 1)
    return _share_after_warmup(schedule, step)


def decay(schedule: ScheduleSpec, step: int) -> float:
    """c = 1 − η·λ of the same update. A float32."""
    return to_float32(1 - learning_rate(schedule, step) * schedule.weight_decay)
