"""The aggregation rule `trimmed`: the extreme votes of each component are removed on both sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thinwire_proto.contract.aggregation import AGGREGATIONS, AggregationSpec
from thinwire_proto.contract.sections import unit


@AGGREGATIONS.register(since="0.3.0")
class TrimmedSpec(AggregationSpec):
    """A trimmed sum: each component loses some weight on the side of + and as much on the side of −, down to none."""

    kind: Literal["trimmed"] = "trimmed"
    percent: int = Field(
        10,
        ge=1,
        le=49,
        description="share of the round's weight that is removed from each side, rounded down",
        json_schema_extra=unit("%"),
    )
