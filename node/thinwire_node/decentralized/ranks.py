"""Does what all ranks of a group do together: compare settings, start from equal values, and average.

Averaging has to work after a rank has died. The ranks agree first, by the store through which they met, who takes part:
each notes its presence there and whom it has lost, and the first that sees all others present or lost writes the list.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from thinwire_node.decentralized.lines import UNBOUNDED, LineGroups
from thinwire_proto.errors import ConfigError, RemoteError

DIFFERENCES_SHOWN = 4
GROUP_DIGITS = 32
"""Of the hash of a group's ranks, by which its names in the store differ from those of other groups."""
LOOK_EVERY_S = 0.02
"""Time between two looks at the store."""
_made: Counter[str] = Counter()  # by this process, for each group; equal on its ranks, which make them together


class Ranks:
    """The ranks of `group`, by default all that torch.distributed has; without it, this process alone.

    rank, count: in that group. Raises ConfigError if this process is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None, patience_s: float) -> None:
        self._patience_s = patience_s
        self._name = ""
        self._calls = 0
        self.rank, self.count = 0, 1
        self._global = [0]
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self.lines: LineGroups | None = None  # for messages between two ranks
        if not (dist.is_available() and dist.is_initialized()):
            return
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ConfigError("Gossip: this process is not in the process group that it was given")
        self._global = dist.get_process_group_ranks(group) if group else list(range(self.count))
        members = hashlib.sha256(json.dumps(self._global).encode()).hexdigest()[:GROUP_DIGITS]
        _made[members] += 1
        self._name = f"thinwire.gossip.{members}.{_made[members]}"  # in the store, which all groups share
        if self.count > 1:
            heads, messages = (self._new_group(range(self.count), UNBOUNDED) for _ in LineGroups._fields)
            self.lines = LineGroups(heads, messages)
            self._averaging_group(range(self.count))

    @property
    def store(self) -> Any:
        """The store through which the ranks met; None for a rank alone."""
        return distributed_c10d._get_default_store() if self.count > 1 else None

    def check_equal(self, described: dict[str, Any]) -> None:
        """Raises ConfigError on all ranks, with the differences, if what describes the ranks differs."""
        if self.count == 1:
            return
        first, *others = [json.loads(text) for text in self._gather(json.dumps(described).encode())]
        found = [
            f"{name}: {first.get(name, 'none')} on rank 0, {other.get(name, 'none')} on rank {rank}"
            for rank, other in enumerate(others, 1)
            for name in dict.fromkeys([*first, *other])
            if first.get(name) != other.get(name)
        ]
        if found:
            more = f"; and {len(found) - DIFFERENCES_SHOWN} more" if len(found) > DIFFERENCES_SHOWN else ""
            raise ConfigError(f"the ranks differ: {'; '.join(found[:DIFFERENCES_SHOWN])}{more}")

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give all ranks the values of rank 0."""
        if self.count == 1:
            return
        group = self._averaging_group(range(self.count))
        for tensor in tensors:
            if tensor.numel():
                sent = tensor.detach().to("cpu", copy=True).contiguous()
                dist.broadcast(sent.view(-1).view(torch.uint8), group=group, group_src=0)
                tensor.detach().copy_(sent)

    def average(self, tensors: Sequence[Tensor], lost: Callable[[], Iterable[int]]) -> list[int]:
        """Replace these tensors, of floats, by their mean over all ranks that take part. Returns these ranks.

        lost: the ranks that this one knows to be gone. Raises RemoteError if the others went on without this rank, or
        if one of them dies meanwhile; the tensors may then have changed.
        """
        if self.count == 1:
            return [0]
        present = self._present(lost)
        if self.rank not in present:
            raise RemoteError(
                f"the other ranks have averaged without this one, which came more than {self._patience_s:g} s late"
            )
        group = self._averaging_group(present)
        for tensor in tensors:
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            total = tensor.detach().to("cpu", wide, copy=True).contiguous()
            try:
                dist.all_reduce(total, group=group)
            except RuntimeError as error:
                raise RemoteError(f"a rank was lost while all averaged: {error}; average again") from error
            tensor.detach().copy_(total.div_(len(present)))
        return present

    def _gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks."""
        group = self._averaging_group(range(self.count))
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=group)
        longest = max(int(size) for size in sizes)
        padded = torch.tensor(list(data.ljust(longest)), dtype=torch.uint8)
        gathered = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(gathered, padded, group=group)
        return [bytes(row.tolist())[: int(size)] for row, size in zip(gathered, sizes, strict=True)]

    def _present(self, lost: Callable[[], Iterable[int]]) -> list[int]:
        """The ranks that take part in this call, as all of them agree."""
        self._calls += 1
        name = f"{self._name}.{self._calls}"
        store = distributed_c10d._get_default_store()
        store.set(f"{name}.{self.rank}", json.dumps(sorted(lost())))
        deadline = time.monotonic() + self._patience_s
        here, gone = {self.rank}, set(lost())
        while len(here | gone) < self.count and time.monotonic() < deadline:
            for rank in set(range(self.count)) - here - gone:
                if store.check([f"{name}.{rank}"]):
                    here.add(rank)
                    gone |= set(json.loads(store.get(f"{name}.{rank}")))
            gone |= set(lost())
            if len(here | gone) < self.count:
                if store.check([f"{name}.all"]):
                    break
                time.sleep(LOOK_EVERY_S)
        decided = store.compare_set(f"{name}.all", "", json.dumps(sorted(here)))
        return [int(rank) for rank in json.loads(decided)]

    def _averaging_group(self, ranks: Iterable[int]) -> dist.ProcessGroup:
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = self._new_group(key, timedelta(seconds=self._patience_s))
        return self._groups[key]

    def _new_group(self, ranks: Iterable[int], patience: timedelta) -> dist.ProcessGroup:
        made: dist.ProcessGroup = dist.new_group(
            [self._global[rank] for rank in ranks], timeout=patience, backend="gloo", use_local_synchronization=True
        )
        return made
