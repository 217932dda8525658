"""The aggregation rule `vote`: the sum of all votes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thinwire_proto.contract.aggregation import AGGREGATIONS, AggregationSpec
from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.sections import since


@AGGREGATIONS.register(since="0.3.0")
class VoteSpec(AggregationSpec):
    """All votes are added, each with its weight."""

    kind: Literal["vote"] = "vote"
    sizes: Literal["median", "own"] = Field(
        "median",
        description='size of a tile\'s votes with demo.magnitude = "tile". median: the median of the sizes that nodes '
        "sent, so no node is heard more than its weight; own: the size that each node sent",
        json_schema_extra=since("0.3.0"),
    )

    def check(self, demo: DemoSpec) -> None:
        if self.sizes == "own" and demo.magnitude == "tile" and demo.update_topk:
            raise ValueError(
                'aggregation.sizes must be "median" if demo.update_topk is not 0, because only merged signs are '
                'compared; it is "own"'
            )
