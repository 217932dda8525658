"""The rule `merged_muon`: nodes send their gradients, and every replica takes the same step of Muon on their mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.rules import RULES, VotingRuleSpec
from thinwire_proto.contract.rules.muon_steps import MuonStepsSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import TILE_EDGE, Parameter

MOMENTUM, SECOND = "momentum:", "second:"
"""Before the name of a parameter: the names of its moments."""
SIDE_MAX = 1 << 22
"""Longer side of a matrix that takes steps of Muon: sums of so many products are exact (`exact.orthogonal`)."""
GRADIENT_BYTES, FLOAT64_BYTES = 4, 48
"""Memory for a number of the merged gradient, and for one of a matrix whose step is computed, which is there several
times in float64."""
THREADS, SMALL_NUMBERS = 8, 1 << 17
"""Threads that are counted for small tensors, and the most numbers of such a tensor: a machine with more threads takes
6 MB more for each."""


def rows_of(parameter: Parameter) -> int:
    """Rows of a tensor: of its first dimension, and one of a vector."""
    return parameter.shape[0] if len(parameter.shape) > 1 else 1


@RULES.register
class MergedMuonSpec(MuonStepsSpec, VotingRuleSpec):
    """Nodes send their gradients in a few levels, and every replica takes the same step of Muon on the merged gradient.

    `schedule.learning_rate` is that of the matrices.
    """

    DEMO_DEFAULTS: ClassVar[dict[str, Any]] = {
        "magnitude": "tile",
        "precondition": "none",
        "k": TILE_EDGE**2,
        "vote_levels": 3,
        "update_levels": 7,
        "beta": 1.0,
    }
    FINE: ClassVar[dict[str, Any]] = DEMO_DEFAULTS | {"vote_step": 0.5, "vote_levels": 9, "update_levels": 15}
    """`demo` where links have the time: nearly twice the bits, for less loss (docs/convergence). The last level is as
    far from 0."""
    MOMENT_BYTES_A_PARAMETER: ClassVar[int] = 4
    MORE_BYTES_A_PARAMETER: ClassVar[int] = 8
    """The momentum, and about what `step_bytes` says, less the second moment, which a node has not."""
    ROUND_DEFAULTS: ClassVar[dict[str, Any]] = {"base_age_max": 0}
    RATE: ClassVar[float] = 0.01
    """The best of dense Muon with 0.9M, 10M and 124M parameters (docs/convergence, its card.md), and the better of two
    of this rule in nineteen levels."""

    kind: Literal["merged_muon"] = "merged_muon"
    adamw_rate: float = Field(1.0, gt=0, le=16)
    """factor on the learning rate for tensors that take steps of Adam, row by row"""

    def takes(self, parameter: Parameter) -> bool:
        return super().takes(parameter) and max(parameter.shape) <= SIDE_MAX

    def moments(self, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
        """A momentum of each parameter, and a second moment of each row of those that take no steps of Muon."""
        momentum = [Parameter(name=MOMENTUM + one.name, shape=one.shape) for one in parameters]
        others = [one for one in parameters if not self.takes(one)]
        rows = [Parameter(name=SECOND + one.name, shape=(rows_of(one),)) for one in others]
        return (*momentum, *rows)

    def more_passes(self, parameters: Sequence[Parameter], tokens: int) -> float:
        return 0.0

    def step_bytes(self, parameters: Sequence[Parameter]) -> int:
        sizes = [prod(one.shape) for one in parameters]
        at_once = max([prod(one.shape) for one in parameters if self.takes(one)], default=0) + THREADS * SMALL_NUMBERS
        return GRADIENT_BYTES * sum(sizes) + FLOAT64_BYTES * min(at_once, sum(sizes))

    def step_flops(self, parameters: Sequence[Parameter]) -> float:
        return self._orthogonal_flops(parameters)

    def check(self, demo: DemoSpec, schedule: ScheduleSpec) -> None:
        wanted = {"magnitude": "tile", "precondition": "none", "beta": 1.0}
        for key, value in wanted.items():
            if getattr(demo, key) != value:
                raise ValueError(
                    f'demo.{key} must be {value!r} for rule.kind = "{self.kind}", whose nodes send gradients and keep '
                    f"only what they have not sent; it is {getattr(demo, key)!r}"
                )
