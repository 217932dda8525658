"""Registers the exchange `star`."""

from __future__ import annotations

from thinwire_node.kinds import KINDS
from thinwire_node.star.exchange import open_star
from thinwire_node.star.part import StarPart


@KINDS.register("star")
class StarKind:
    open_exchange = staticmethod(open_star)
    make_part = staticmethod(StarPart)
