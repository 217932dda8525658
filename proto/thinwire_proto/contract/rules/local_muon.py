"""The rule `local_muon`: a node takes local Muon steps and compresses the difference of the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.rules import RULES
from thinwire_proto.contract.rules.local_steps import LocalStepsSpec
from thinwire_proto.contract.sections import TILE_EDGE, Parameter

EMBEDDINGS_MAX = 2
"""Matrices of a model with a side as long as its vocabulary: an embedding and a head."""


@RULES.register(since="0.3.0")
class LocalMuonSpec(LocalStepsSpec):
    """A node takes local steps of Muon and sends the compressed difference of its parameters.

    `schedule.learning_rate` is that of the matrices.
    """

    DEMO_DEFAULTS: ClassVar[dict[str, Any]] = LocalStepsSpec.DEMO_DEFAULTS | {"k": TILE_EDGE**2, "update_levels": 3}
    """One bit of every component up, and its sum in seven levels down."""
    MORE_BYTES_A_PARAMETER: ClassVar[int] = LocalStepsSpec.MORE_BYTES_A_PARAMETER + 4
    """An outer momentum too. Matrices have no second moment, so this is an upper bound."""
    RATE_OVER_DEMO: ClassVar[float] = 7.5
    """0.015 over 0.002, with 16 and 64 nodes."""

    kind: Literal["local_muon"] = "local_muon"
    outer_rate: float = Field(0.8, ge=1e-3, le=16, description="factor on the mean of what the nodes send")
    outer_momentum: float = Field(0.6, ge=0, lt=1, description="decay of the momentum of a node's differences")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment of tensors that take steps of AdamW")
    momentum: float = Field(0.9, ge=0, lt=1, description="decay of the momentum of a matrix, in inner steps")
    adamw_rate: float = Field(
        0.2, gt=0, le=16, description="factor on the learning rate for tensors that take steps of AdamW"
    )
    adamw_for: tuple[str, ...] = Field(
        ("embed", "wte", "wpe", "head.weight", "classifier", "score"),
        max_length=64,
        strict=False,
        description="parts of the names of matrices that take steps of AdamW, as all other tensors do",
    )

    @classmethod
    def with_defaults(cls, demo: dict[str, Any]) -> dict[str, Any]:
        """An update that keeps the strongest, or has no sizes, has no levels unless it is said."""
        given = super().with_defaults(demo)
        if "update_levels" not in demo and (demo.get("update_topk") or given["magnitude"] != "tile"):
            given["update_levels"] = 0
        return given

    def takes(self, parameter: Parameter) -> bool:
        """Whether a parameter takes steps of Muon."""
        return len(parameter.shape) == 2 and not any(part in parameter.name for part in self.adamw_for)

    def more_passes(self, parameters: Sequence[Parameter], tokens: int) -> float:
        """Five iterations of three products take 30·m²·n operations for a matrix whose shorter side is m, and a pass
        takes 6·m·n a token."""
        cubes = sum(min(one.shape) ** 2 * max(one.shape) for one in parameters if self.takes(one))
        return 5 * cubes / (tokens * max(1, sum(prod(one.shape) for one in parameters)))

    def doubts(self, parameters: Sequence[Parameter], vocabulary: int) -> Iterator[tuple[str, str]]:
        found = [one.name for one in parameters if vocabulary in one.shape and self.takes(one)]
        if found and len(found) <= EMBEDDINGS_MAX:  # else the model is as wide
            has = "have sides" if len(found) > 1 else "has a side"
            yield (
                "rule.adamw_for",
                f"{' and '.join(found)} {has} as long as the vocabulary, and Muon's steps; embeddings and heads learn "
                "better with AdamW, so name them here",
            )
