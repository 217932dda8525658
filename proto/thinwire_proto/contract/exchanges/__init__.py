"""Kinds of exchange, each a file of this package: how contributions become updates that every node has."""

from __future__ import annotations

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class ExchangeSpec(KindSpec):
    """What all exchanges have."""

    def check(self, demo: DemoSpec, rounds: RoundSpec) -> None:
        """Raise ValueError if the exchange cannot work with these."""


EXCHANGES: TaggedUnion[ExchangeSpec] = TaggedUnion("exchange", ExchangeSpec, default="star", home=__name__)
