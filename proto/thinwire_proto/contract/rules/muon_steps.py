"""The settings of Muon's steps, which the rules `muon` and `local_muon` share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import ClassVar

from pydantic import Field

from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.sections import Parameter

EMBEDDINGS_MAX = 2
"""Matrices of a model with a side as long as its vocabulary: an embedding and a head."""


class MuonStepsSpec(RuleSpec):
    """Matrices take steps of Muon; embeddings, and tensors that are not matrices, take steps of AdamW."""

    NEEDS_WHOLE: ClassVar[str] = "steps with whole matrices"

    momentum: float = Field(0.9, ge=0, lt=1)
    """decay of the momentum of a matrix, in steps"""
    adamw_rate: float = Field(0.2, gt=0, le=16)
    """factor on the learning rate for tensors that take steps of AdamW"""
    adamw_for: tuple[str, ...] = Field(
        ("embed", "wte", "wpe", "head.weight", "classifier", "score"), max_length=64, strict=False
    )
    """parts of the names of matrices that take steps of AdamW, as all other tensors do"""

    def takes(self, parameter: Parameter) -> bool:
        """Whether a parameter takes steps of Muon."""
        return len(parameter.shape) == 2 and not any(part in parameter.name for part in self.adamw_for)

    def more_passes(self, parameters: Sequence[Parameter], tokens: int) -> float:
        """A pass takes 6·m·n operations a token for a matrix of m × n."""
        return self._orthogonal_flops(parameters) / (6 * tokens * max(1, sum(prod(one.shape) for one in parameters)))

    def _orthogonal_flops(self, parameters: Sequence[Parameter]) -> float:
        """Five iterations of three products take 30·m²·n operations for a matrix whose shorter side is m."""
        return 30.0 * sum(min(one.shape) ** 2 * max(one.shape) for one in parameters if self.takes(one))

    def doubts(self, parameters: Sequence[Parameter], vocabulary: int) -> Iterator[tuple[str, str]]:
        if not any(self.takes(one) for one in parameters):
            yield (
                "rule.kind",
                "the model has no matrix for steps of Muon, so all tensors take those of AdamW, at rule.adamw_rate "
                "times the rate",
            )
        found = [one.name for one in parameters if vocabulary in one.shape and self.takes(one)]
        if found and len(found) <= EMBEDDINGS_MAX:  # else the model is as wide
            has = "have sides" if len(found) > 1 else "has a side"
            yield (
                "rule.adamw_for",
                f"{' and '.join(found)} {has} as long as the vocabulary, and Muon's steps; embeddings and heads learn "
                "better with AdamW, so name them here",
            )
