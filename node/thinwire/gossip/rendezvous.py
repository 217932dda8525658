"""Makes groups of ranks with gloo, within a limit of time.

`dist.new_group` is no help after a fault: its ranks meet under a number of groups that each process counts for itself.
One rank that has made another group, or missed one, would meet nobody again. So the caller names the group here. The
ranks come together in their store first, which tells who is absent; gloo would only say that it waited.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from thinwire_proto.errors import RemoteError

GLOO = dist.ProcessGroup.BackendType.GLOO
LOOK_EVERY_S = 0.02
"""Time between two looks at the store."""


def new_group(store: Store, name: str, ranks: Sequence[int], rank: int, patience_s: float) -> dist.ProcessGroup:
    """The group of `ranks`, of which this is `rank`. All of them call this with one name, which no other group has.

    Raises RemoteError if they do not all come within the patience."""
    place = PrefixStore(f"{name}/", store)
    with store_answers():
        place.set(str(rank), "")
        if absent := _absent(place, ranks, patience_s):
            raise RemoteError(
                f"rank {', '.join(map(str, absent))} did not come within {patience_s:g} s; all ranks create Gossip "
                "together, and enter `averaged` together. If one needs longer, give a larger patience_s"
            )
    with nobody_lost("connected"):
        backend = dist.ProcessGroupGloo(place, ranks.index(rank), len(ranks), timeout=timedelta(seconds=patience_s))
    group = dist.ProcessGroup(place, ranks.index(rank), len(ranks))
    group._set_default_backend(GLOO)
    group._register_backend(torch.device("cpu"), GLOO, backend)
    return group


@contextmanager
def store_answers() -> Iterator[None]:
    """Raises RemoteError where torch says that the ranks' store is gone."""
    try:
        yield
    except RuntimeError as error:
        raise RemoteError(
            "the store through which the ranks met is gone, with rank 0 or with torchrun, which kept it: "
            f"{words_of(error)}; start the ranks again"
        ) from error


@contextmanager
def nobody_lost(did: str) -> Iterator[None]:
    """Raises RemoteError where gloo says that a rank is gone, or has not answered in time."""
    try:
        yield
    except RuntimeError as error:
        raise RemoteError(f"a rank was lost while all {did}: {words_of(error)}") from error


def words_of(error: RuntimeError) -> str:
    """Of an error of gloo or of the store, without the place in its source."""
    return str(error).partition("\n")[0].rpartition("] ")[2].split(" [")[0]


def _absent(place: Store, ranks: Sequence[int], patience_s: float) -> list[int]:
    """The ranks that have not come at the end of the patience."""
    deadline = time.monotonic() + patience_s
    while not (complete := place.check([str(rank) for rank in ranks])) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
    return [] if complete else [rank for rank in ranks if not place.check([str(rank)])]
