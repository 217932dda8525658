"""Specs of the exchange kinds; each kind is one file of this package.

An exchange defines how nodes share what they learned.
"""

from __future__ import annotations

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class ExchangeSpec(KindSpec):
    """The base of all exchange specs."""

    def check(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec) -> None:
        """Raise ValueError if the exchange cannot work with these sections."""


EXCHANGES: TaggedUnion[ExchangeSpec] = TaggedUnion("exchange", ExchangeSpec, default="star", home=__name__)
