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
    """η of the update that leads from θ_step to θ_{step+1}; linear warm-up, then cosine to the floor. A float32,
    and 0 where it would be subnormal, because nodes refuse a subnormal rate."""
    rate = to_float32(_rate(schedule, step))
    return rate if rate >= RATE_MIN else 0.0


def _rate(schedule: ScheduleSpec, step: int) -> float:
    if step < schedule.warmup_steps:
        return schedule.learning_rate * (step + 1) / (schedule.warmup_steps + 1)
    progress = min(1.0, (step - schedule.warmup_steps) / (schedule.steps - schedule.warmup_steps))
    share = schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * progress))
    return schedule.learning_rate * share


def decay(schedule: ScheduleSpec, step: int) -> float:
    """c = 1 − η·λ of the same update. A float32."""
    return to_float32(1 - learning_rate(schedule, step) * schedule.weight_decay)
