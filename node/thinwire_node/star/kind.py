"""Registers the exchange `star`."""

from __future__ import annotations

from thinwire_node.kinds import KINDS
from thinwire_node.star.exchange import Star
from thinwire_node.star.part import StarPart


@KINDS.register("star")
class StarKind:
    open_exchange = Star.open
    make_part = staticmethod(StarPart)
