"""The exchange `star`: one coordinator merges the contributions of all nodes, seals updates and serves them."""

from __future__ import annotations

from typing import Literal

from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec


@EXCHANGES.register(since="0.2.0")
class StarSpec(ExchangeSpec):
    """One coordinator merges the contributions of all nodes, seals updates and serves them."""

    kind: Literal["star"] = "star"
