"""The aggregation rule `quorum`: a component counts only if enough weight voted for its prevailing sign."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thinwire_proto.contract.aggregation import AGGREGATIONS, AggregationSpec
from thinwire_proto.contract.sections import unit


@AGGREGATIONS.register(since="0.3.0")
class QuorumSpec(AggregationSpec):
    """A component counts only if enough of the round's weight voted for its prevailing sign. It then counts as with
    `vote`."""

    kind: Literal["quorum"] = "quorum"
    percent: int = Field(
        10,
        ge=1,
        le=100,
        description="share of the round's weight that the prevailing sign needs, rounded up",
        json_schema_extra=unit("%"),
    )
