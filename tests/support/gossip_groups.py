"""Scenes of ranks in several process groups, each of which gossips by itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from support.gossip_ranks import RANKS
from thinwire_node.decentralized.ranks import Ranks
from thinwire_proto.errors import RemoteError

PATIENCE_S = 2.0


def apart(rank: int) -> Any:
    """Ranks 0 and 1 average; then rank 2, which has lost rank 3. Returns who took part."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    ranks = Ranks(groups[rank // 2], PATIENCE_S)
    present: list[int] | str | None = None
    if rank < 2:
        present = ranks.average([torch.full((3,), float(rank))], lambda: ())
    dist.barrier()
    if rank == 2:
        try:
            present = ranks.average([torch.zeros(3)], lambda: [1])
        except RemoteError as error:
            present = str(error)
    dist.barrier()
    return present


SCENES = [apart]
assert RANKS == 4
