"""Scenes of ranks in several process groups, of ranks that do not come, and of averaging after that."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.gossip_problem import Network
from support.gossip_ranks import RANKS
from thinwire import Gossip
from thinwire.gossip.ranks import Ranks
from thinwire_proto.errors import RemoteError

PATIENCE_S = 2.0
ABSENCE_S = 4.0
"""Patience where a rank does not come: long enough for the others to meet on a busy machine."""
LATE, DEAD = 1, 3


def apart(rank: int) -> Any:
    """Ranks 0 and 1 average; then rank 2, which has lost rank 3. Returns who took part."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    ranks = Ranks(groups[rank // 2], PATIENCE_S)
    present: list[int] | str | None = None
    if rank < 2:
        present = average(ranks, rank)
    dist.barrier()
    if rank == 2:
        present = average(ranks, rank, [1])
    dist.barrier()
    return present


def unequal_groups(rank: int) -> Any:
    """Ranks 0 and 2 make a group and a Gossip of their own; then all make one. Returns who took part in its average."""
    model = Network(seed=0)
    if rank in {0, 2}:
        pair = dist.new_group([0, 2], use_local_synchronization=True)
        Gossip(model, torch.optim.SGD(model.parameters()), process_group=pair).finish()
    gossip = Gossip(model, torch.optim.SGD(model.parameters()))
    with gossip.averaged() as present:
        pass
    gossip.finish()
    return present


def absent(rank: int) -> Any:
    """Rank 3 makes its Gossip only after the others have given up. Returns the error; then who averages once all have
    come."""
    error = ""
    dist.barrier()
    if rank != DEAD:
        try:
            Ranks(None, ABSENCE_S)
        except RemoteError as raised:
            error = str(raised)
    dist.barrier()
    return error, average(Ranks(None, PATIENCE_S), rank)


def growing(rank: int) -> Any:
    """Returns the keys in the store after one average, and after ten more."""
    ranks = Ranks(None, PATIENCE_S)
    found = []
    for calls in (1, 10):
        for _ in range(calls):
            average(ranks, rank)
        dist.barrier()
        found.append(ranks.store.num_keys())
        dist.barrier()
    return found


def late_then_dead(rank: int) -> Any:
    """Rank 1 comes only after the others have averaged twice; then all average, and again once rank 3 has died. Returns
    who took part in each call, and the last mean."""
    dist.barrier()
    ranks = Ranks(None, ABSENCE_S)
    punctual = [Path(f"punctual.{other}") for other in range(RANKS) if other != LATE]
    while rank == LATE and not all(path.exists() for path in punctual):
        time.sleep(0.01)
    found = [average(ranks, rank), average(ranks, rank)]
    Path(f"punctual.{rank}").touch()
    dist.barrier()
    found.append(average(ranks, rank))
    if rank == DEAD:
        os._exit(0)
    tensor = torch.full((3,), float(rank))
    return [*found, ranks.average([tensor], lambda: [DEAD]).present], tensor[0].item()


def average(ranks: Ranks, rank: int, lost: list[int] | None = None) -> list[int] | str:
    """Who took part, or the error."""
    try:
        return ranks.average([torch.full((3,), float(rank))], lambda: lost or []).present
    except RemoteError as error:
        return str(error)


SCENES = [apart, unequal_groups, absent, growing, late_then_dead]
assert RANKS == 4
