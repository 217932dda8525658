"""Registers the exchange `gossip`."""

from __future__ import annotations

from thinwire_node.gossip.exchange import open_gossip
from thinwire_node.gossip.part import GossipPart
from thinwire_node.kinds import KINDS


@KINDS.register("gossip")
class GossipKind:
    open_exchange = staticmethod(open_gossip)
    make_part = staticmethod(GossipPart)
