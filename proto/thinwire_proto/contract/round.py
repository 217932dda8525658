"""Rounds: their clock, and what a node may do within one of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.sections import WEIGHT_SUM_MAX, Section


class RoundSpec(Section):
    """The clock and what a node may do within one beat of it."""

    pace: Literal["barrier", "clock"] = "barrier"
    length_ms: int = Field(30_000, ge=50, le=86_400_000, description="T: a round is over by then at the latest")
    base_age_max: int = Field(0, ge=0, le=16, description="steps that a base may lie behind its round; 1 at pace clock")
    momentum_age_max: int = Field(100, ge=1, description="steps after which an absent node's momentum is worth nothing")
    min_contributions: int = Field(1, ge=1)
    samples: int = Field(8, ge=1, le=1 << 20, description="samples that have the full weight; barrier: a node's share")
    weight_max: int = Field(8, ge=1, le=WEIGHT_SUM_MAX)
    nodes_max: int = Field(1024, ge=1, le=8192)

    @model_validator(mode="before")
    @classmethod
    def _base_age(cls, given: Any) -> Any:
        """Where nobody waits for anybody, nobody waits for the update either."""
        if isinstance(given, dict) and given.get("pace") == "clock":
            return {"base_age_max": 1} | given
        return given

    @property
    def length_s(self) -> float:
        return self.length_ms / 1000

    @property
    def lease_samples(self) -> int:
        """What a node is given in advance: a round's samples; if it does not wait for the update, the next one's, and
        as many again for the time in which others are waited for."""
        return self.samples * (3 if self.base_age_max else 1)

    @model_validator(mode="after")
    def _relations(self) -> RoundSpec:
        if self.nodes_max * self.weight_max > WEIGHT_SUM_MAX:
            raise ValueError(
                f"nodes_max · weight_max must be at most {WEIGHT_SUM_MAX}, so that merged votes fit an int16; "
                f"{self.nodes_max} · {self.weight_max} is {self.nodes_max * self.weight_max}"
            )
        if self.min_contributions > self.nodes_max:
            raise ValueError(
                f"min_contributions must be at most nodes_max; {self.min_contributions} is more than {self.nodes_max}"
            )
        return self
