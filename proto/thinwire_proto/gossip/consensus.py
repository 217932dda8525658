"""The disagreement between nodes, from a sketch of 1,024 numbers each, and the controller that holds it below a target.

A count sketch adds each parameter, with a sign, to one of the buckets; place and sign are hashes of its position. It is
linear, so the distance of two sketches estimates the distance of the parameters (Charikar, Chen and Farach-Colton,
Finding frequent items in data streams, 2002). The squared distance has the relative standard error √(2/buckets).

Training needs the disagreement to be small beside the step (Kong et al., Consensus control for decentralized deep
learning, 2021). The controller spends more bytes when it is not, and fewer when it is far below. It never changes γ:
with a γ too large for a codec, single nodes diverge while their mean still looks well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.mix64 import GOLDEN, MASK, mix64, mix64_array

BUCKETS = 1024
ERROR = math.sqrt(2 / BUCKETS)
"""Relative: two standard errors of the estimated distance, 4.4%."""
MEASURE_EVERY = 32
"""Iterations from one measurement to the next. A decision takes effect one such period after its measurement, so that
the sketches of all nodes are there."""
CHUNK = 1 << 16
"""Parameters that are hashed at a time. Bounds the extra memory; does not change the sketch."""
CALM = 4
"""Measurements in a row that must be far below the target before fewer bytes are sent."""
FAR_BELOW = 0.5

SKETCH_NUMBER = np.dtype("<f4")
SKETCH_BYTES = BUCKETS * SKETCH_NUMBER.itemsize
"""A sketch on its way to a coordinator."""

Sketch = npt.NDArray[np.float64]


def sketch_of(x: Tensor, seed: int) -> Sketch:
    """The sketch of a flat tensor, float64 [BUCKETS]. Sketches under one seed can be compared."""
    values = x.detach().cpu().numpy()
    sketch = np.zeros(BUCKETS)
    key = np.uint64(mix64(seed))
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK].astype(np.float64)
        positions = np.arange(start, start + len(part), dtype=np.uint64)
        mixed = mix64_array(positions * np.uint64(GOLDEN & MASK) ^ key)
        signs = 1.0 - 2.0 * (mixed & np.uint64(1)).astype(np.float64)
        sketch += np.bincount((mixed >> np.uint64(54)).astype(np.int64), part * signs, BUCKETS)
    return sketch


def pack_sketch(x: Tensor, iteration: int) -> bytes:
    """The sketch of the parameters with which an iteration begins, as it travels. The iteration is the seed, so the
    sketches of one iteration can be compared, and the errors of several measurements are independent."""
    return sketch_of(x, iteration).astype(SKETCH_NUMBER).tobytes()


def unpack_sketch(data: bytes) -> Sketch:
    return np.frombuffer(data, SKETCH_NUMBER).astype(np.float64)


@dataclass(frozen=True)
class Disagreement:
    """Root mean square distance of the nodes from their mean, as a norm over all parameters. error: relative, two
    standard errors; the hashes are the same for all nodes, so more nodes do not lower it."""

    distance: float
    error: float = ERROR

    def in_steps(self, step: float) -> float:
        """The distance in units of a step's norm."""
        return self.distance / step if step > 0 else math.inf if self.distance else 0.0


def disagreement(sketches: Sequence[Sketch]) -> Disagreement:
    """Estimated from a sketch of each node, at least one."""
    nodes = np.stack(sketches)
    return Disagreement(math.sqrt(float(((nodes - nodes.mean(0)) ** 2).sum()) / len(nodes)))


@dataclass(frozen=True)
class Level:
    """A codec, and that an exchange takes place in each iteration that is a multiple of `every`."""

    codec: str
    every: int = 1


LEVELS = tuple(Level(codec, every) for codec, every in (
    ("sign", 8), ("sign", 4), ("sign", 2), ("sign", 1), ("int8", 1), ("bf16", 1), ("dense", 1)))  # fmt: skip
"""From the fewest bytes to the most."""


def level_of(codec: str, every: int) -> int:
    """The index of the level with this codec and `every`. Raises ConfigError if there is none."""
    level = Level(codec, every)
    if level not in LEVELS:
        raise ConfigError(
            f"consensus_target: there is no level with codec {codec!r} and every {every}; there are "
            f"{', '.join(_words(level) for level in LEVELS)}"
        )
    return LEVELS.index(level)


@dataclass(frozen=True)
class Decision:
    """level: index of the ladder. calm: measurements in a row far below the target. reason: for people. is_unmet: the
    disagreement is above the target at the level that sends the most."""

    level: int
    calm: int
    reason: str
    is_unmet: bool = False


def decide(before: Decision, ratio: float, target: float) -> Decision:
    """The next level, from the measured disagreement in steps. Pure: the same arguments, the same decision.

    Above the target, allowing for the error, more bytes at once. Far below in CALM measurements, fewer.
    """
    measured = f"the nodes are {ratio:.3g} steps apart; the target is {target:g}"
    if not ratio <= target * (1 + ERROR):
        if before.level + 1 < len(LEVELS):
            return Decision(before.level + 1, 0, f"{measured}: more bytes, {_words(LEVELS[before.level + 1])}")
        return Decision(before.level, 0, f"{measured}, and no codec sends more", is_unmet=True)
    if ratio > FAR_BELOW * target or before.level == 0:
        return Decision(before.level, 0, measured)
    if before.calm + 1 < CALM:
        return Decision(before.level, before.calm + 1, measured)
    return Decision(before.level - 1, 0, f"{measured}: fewer bytes, {_words(LEVELS[before.level - 1])}")


def _words(level: Level) -> str:
    return level.codec if level.every == 1 else f"{level.codec} in one of {level.every} iterations"
