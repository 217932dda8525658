"""Specs of the local rules; each kind is one file of this package.

A local rule defines what a node does with its gradients: between two extractions in a star run (docs/local-rules.md),
or in an iteration of a gossip run. `thinwire_node.star.rules` and `thinwire_node.gossip.rules` run them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import AMENDABLE, Parameter
from thinwire_proto.contract.unions import KindSpec, TaggedUnion

ADAM_BETAS = (0.9, 0.99)
"""Decays of the first and the second moment of every rule that takes steps of AdamW, as in the study of convergence."""


class RuleSpec(KindSpec):
    """The base of all local rule specs."""

    DEMO_DEFAULTS: ClassVar[dict[str, Any]] = {}
    """Defaults of the section `demo` that this rule changes."""
    ROUND_DEFAULTS: ClassVar[dict[str, Any]] = {}
    """Defaults of the section `round` that this rule changes."""
    STEPS_ALONE: ClassVar[bool] = False
    """Whether a node steps by itself with it, and sends no gradients."""
    MORE_BYTES_A_PARAMETER: ClassVar[int] = 0
    """Memory of a node for what the rule keeps beside a sum of gradients, a momentum and a second moment."""
    OWN_MOMENT_BYTES_A_PARAMETER: ClassVar[int] = 0
    """The part of these that holds moments of this node alone."""
    MOMENT_BYTES_A_PARAMETER: ClassVar[int] = 0
    """Size of `moments`, in memory and in a snapshot."""
    NEEDS_WHOLE: ClassVar[str] = "steps with each gradient"
    """Why each process of a node must hold the whole model, as a verb and its object; empty: they may divide it."""
    RATE_OVER_DEMO: ClassVar[float] = 1.0
    """Its best learning rate over that of `demo` (docs/convergence)."""
    RATE: ClassVar[float] = 0.0
    """Its best learning rate from scratch, where that is the same for models of any size; else 0."""

    def undivided(self, parameters: Sequence[Parameter]) -> set[str]:
        """The names of the matrices that one process of a node must hold whole, where they divide the model."""
        return set()

    def moments(self, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
        """The tensors that every replica holds alike beside the parameters: float32, 0 at first, with own names."""
        return ()

    @classmethod
    def with_defaults(cls, demo: dict[str, Any]) -> dict[str, Any]:
        """The keys that a run gives in the section `demo`, and this rule's defaults for others."""
        return cls.DEMO_DEFAULTS | demo

    def micro_batch_max(self, allowed: int) -> int:
        """The largest micro-batch, in samples, on a node whose owner allows up to `allowed`."""
        return allowed

    def samples_at_most(self, of_a_round: int) -> int:
        """The samples that a node ever has for one pass. of_a_round: `round.samples`."""
        return of_a_round

    def more_passes(self, parameters: Sequence[Parameter], tokens: int) -> float:
        """Time of a micro-batch of so many tokens beside its forward and backward pass, in such passes."""
        return 0.0

    def step_bytes(self, parameters: Sequence[Parameter]) -> int:
        """Memory while a replica takes a step, beside what an update takes."""
        return 0

    def step_flops(self, parameters: Sequence[Parameter]) -> float:
        """Operations in float64 of a step that every replica takes."""
        return 0.0

    def doubts(self, parameters: Sequence[Parameter], vocabulary: int) -> Iterator[tuple[str, str]]:
        """Keys whose values likely do not suit a model with these parameters, and why."""
        yield from ()

    def check(self, demo: DemoSpec, schedule: ScheduleSpec) -> None:
        """Raise ValueError if the rule cannot work with these sections."""


class VotingRuleSpec(RuleSpec):
    """The base of the rules whose nodes send votes, which the coordinator merges."""

    @property
    def update_factor(self) -> float:
        """Factor on the mean of updates that carry magnitudes."""
        return 1.0


class OuterRateSpec(VotingRuleSpec):
    """The base of the voting rules whose updates are changes of the parameters."""

    outer_rate: float = Field(1.0, ge=1e-3, le=16, json_schema_extra=AMENDABLE)
    """factor on the mean of updates that carry magnitudes"""

    @property
    def update_factor(self) -> float:
        return self.outer_rate

    def check(self, demo: DemoSpec, schedule: ScheduleSpec) -> None:
        if demo.beta == 1:
            raise ValueError(f'demo.beta must be below 1 for rule.kind = "{self.kind}": a momentum decays')
        if demo.magnitude != "tile" and self.outer_rate != 1.0:
            raise ValueError(
                'rule.outer_rate needs demo.magnitude = "tile", because all others step by schedule.learning_rate; '
                f"it is {self.outer_rate}"
            )


RULES: TaggedUnion[RuleSpec] = TaggedUnion("rule", RuleSpec, default="demo", home=__name__)
