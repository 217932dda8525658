"""Specs of the exchange kinds; each kind is one file of this package.

An exchange defines how nodes share what they learned.
"""

from __future__ import annotations

from typing import ClassVar

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.trained import Trained
from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class ExchangeSpec(KindSpec):
    """The base of all exchange specs. ORDERS_AHEAD: whether an amendment that is ordered before the run begins holds
    from just the step that it names."""

    ORDERS_AHEAD: ClassVar[bool] = False

    def may_change(self, key: str) -> bool:
        """Whether an amendment may have this: a key that is marked `AMENDABLE`, or REWIND."""
        return False

    def check(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec) -> None:
        """Raise ValueError if the exchange cannot work with these sections."""

    def trained_bytes(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec, trained: Trained) -> int:
        """Peak memory of a node for its trained parameters: values, gradients, momentum, and copies of them. 0 for an
        exchange that does not say."""
        return 0

    def own_moments_bytes(self, demo: DemoSpec, rule: RuleSpec, trained: Trained) -> int:
        """The part of `trained_bytes` that holds the node's own momentum and moments, which may be in another memory
        than the parameters. 0 for an exchange that cannot divide them."""
        return 0

    def state_bytes(self, demo: DemoSpec, rounds: RoundSpec, trained: Trained) -> int:
        """Size of the files of a node's own state. 0 for an exchange that does not say."""
        return 0


EXCHANGES: TaggedUnion[ExchangeSpec] = TaggedUnion("exchange", ExchangeSpec, default="star", home=__name__)
