"""Registers the exchange `gossip`."""

from __future__ import annotations

from thinwire_node.gossip.exchange import Gossip
from thinwire_node.gossip.part import GossipPart
from thinwire_node.kinds import KINDS


@KINDS.register("gossip")
class GossipKind:
    open_exchange = Gossip.open
    make_part = staticmethod(GossipPart)
