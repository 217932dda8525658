"""Specs of the aggregation rules; each kind is one file of this package.

An aggregation rule defines how the votes of a round become the update. docs/organizer.md compares the rules, and
`thinwire_proto.exact.aggregation` computes them. Only the coordinator merges, so a node needs no rule to apply an
update.
"""

from __future__ import annotations

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class AggregationSpec(KindSpec):
    """The base of all aggregation specs."""

    def check(self, demo: DemoSpec) -> None:
        """Raise ValueError if the rule cannot work with this section."""


AGGREGATIONS: TaggedUnion[AggregationSpec] = TaggedUnion("aggregation", AggregationSpec, default="vote", home=__name__)
