"""Registers the exchange `star`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from thinwire_node.kinds import KINDS
from thinwire_node.star.exchange import Star
from thinwire_node.star.part import StarPart
from thinwire_node.star.site.leader import undivided
from thinwire_node.storage.state import REPLICA_FILE
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import load_replica


@KINDS.register("star")
class StarKind:
    open_exchange = Star.open
    make_part = staticmethod(StarPart)

    @staticmethod
    def undivided(contract: Contract) -> str:
        return undivided(contract)

    @staticmethod
    def parameters(folder: Path, contract: Contract) -> Mapping[str, Tensor]:
        return load_replica(contract, folder / REPLICA_FILE).tensors
