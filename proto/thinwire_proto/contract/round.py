"""The contract's section `round`: the timing of rounds and the limits for nodes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.sections import AMENDABLE, WEIGHT_SUM_MAX, Section, unit

LEASE_ROUNDS = 3
"""Samples of a lease over those of a round, if nodes do not wait for the update."""


class RoundSpec(Section):
    """The timing of rounds, and the limits for a node within a round."""

    pace: Literal["barrier", "clock"] = "barrier"
    """what ends a round. barrier: all nodes have delivered, or length_ms is over; clock: length_ms is over, always"""
    length_ms: int = Field(30_000, ge=50, le=86_400_000, json_schema_extra=unit("ms") | AMENDABLE)
    """T: maximum length of a round"""
    base_age_max: int = Field(0, ge=0, le=16, json_schema_extra=unit("steps"))
    """steps that a base, the parameters that a gradient was computed on, may be behind its round; with 1 or more,
    computing does not wait for the update; default 1 at pace clock"""
    momentum_age_max: int = Field(100, ge=1, json_schema_extra=unit("steps") | AMENDABLE)
    """steps after which an absent node must drop its momentum"""
    min_contributions: int = Field(1, ge=1, json_schema_extra=unit("contributions") | AMENDABLE)
    """contributions that a round needs; with fewer, it is void and changes nothing"""
    samples: int = Field(8, ge=1, le=1 << 20, json_schema_extra=unit("samples") | AMENDABLE)
    """samples for the full weight; at pace barrier also a node's share"""
    weight_max: int = Field(8, ge=1, le=WEIGHT_SUM_MAX)
    """full weight: a contribution weighs ⌈trained · weight_max / samples⌉, at most this"""
    nodes_max: int = Field(1024, ge=1, le=8192, json_schema_extra=unit("nodes"))
    """nodes that may take part at the same time"""

    @model_validator(mode="before")
    @classmethod
    def _base_age(cls, given: Any) -> Any:
        """At pace clock, nodes do not wait for the update, so bases are one step old by default."""
        if isinstance(given, dict) and given.get("pace") == "clock":
            return {"base_age_max": 1} | given
        return given

    @property
    def length_s(self) -> float:
        return self.length_ms / 1000

    @property
    def lease_samples(self) -> int:
        """Size of a lease: the samples of one round.

        If nodes do not wait for the update, a lease also covers the next round, and as much again for the time in which
        the swarm waits for other nodes.
        """
        return self.samples * (LEASE_ROUNDS if self.base_age_max else 1)

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
