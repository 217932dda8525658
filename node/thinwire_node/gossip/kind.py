"""Registers the exchange `gossip`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from thinwire_node.gossip.exchange import Gossip
from thinwire_node.gossip.journal import read_x
from thinwire_node.gossip.part import GossipPart
from thinwire_node.kinds import KINDS
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import layout_of


@KINDS.register("gossip")
class GossipKind:
    open_exchange = Gossip.open
    make_part = staticmethod(GossipPart)

    @staticmethod
    def undivided(contract: Contract) -> str:
        return "this is a gossip run"

    @staticmethod
    def parameters(folder: Path, contract: Contract) -> Mapping[str, Tensor]:
        return layout_of(contract.parameters).unflattened(read_x(folder))
