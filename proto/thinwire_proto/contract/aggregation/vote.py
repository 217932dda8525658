"""The aggregation rule `vote`: the sum of all votes."""

from __future__ import annotations

from typing import Literal

from thinwire_proto.contract.aggregation import AGGREGATIONS, AggregationSpec


@AGGREGATIONS.register(since="0.3.0")
class VoteSpec(AggregationSpec):
    """All votes are added, each with its weight."""

    kind: Literal["vote"] = "vote"
