"""Does what all ranks of a group do together: compare settings, start from equal values, and average."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import Store

from thinwire.gossip.flat import overwrite
from thinwire.gossip.lines import LineGroups
from thinwire.gossip.rendezvous import LOOK_EVERY_S, new_group, nobody_lost, store_answers
from thinwire.script import check_alone
from thinwire_proto.errors import ConfigError, RemoteError

DECISION = "decision"
NO_GROUP = -1


@dataclass(frozen=True)
class Decision:
    """call: its number. present: the ranks that take part. group: the call in which they made their group; this one, if
    they have to make it."""

    call: int
    present: list[int]
    group: int


@dataclass(frozen=True)
class Note:
    """Of one rank. group: the call in which it made the group that it has."""

    call: int
    lost: list[int]
    group: int


class Attendance:
    """Agrees among the ranks who takes part in an averaging, which has to work after a rank has died.

    Each rank notes its presence, and whom it has lost, in the store by which they met. The first that sees all others
    present or lost, or has waited long enough, writes the decision; all others take what is written. Notes and decision
    carry the number of the call, and are overwritten by the next: the store does not grow, and a rank that comes late
    finds a newer decision instead of its own.

    Of `rank`, one of `count`. store: of these ranks alone. calls: of `agree`, by this rank."""

    def __init__(self, store: Store, rank: int, count: int, patience_s: float) -> None:
        self._store = store
        self._rank, self._count = rank, count
        self._patience_s = patience_s
        self.calls = 0
        with store_answers():
            store.compare_set(DECISION, "", _text(Decision(0, list(range(count)), 0)))

    def agree(self, lost: Callable[[], Iterable[int]], group: int, ranks: Iterable[int]) -> Decision:
        """The decision of this call; of a later one if the others went on without this rank.

        lost: the ranks that this one knows to be gone. group, ranks: what this rank has."""
        self.calls += 1
        with store_answers():
            before = self._store.get(DECISION).decode()
            own = Note(self.calls, sorted(lost()), group)
            self._store.set(str(self._rank), _text(own))
            notes = self._notes(own, lost)
            decided = before
            if _decision(before).call < self.calls:
                present = sorted(notes)
                is_same = {note.group for note in notes.values()} == {group} and present == sorted(ranks)
                decision = Decision(self.calls, present, group if is_same else self.calls)
                decided = self._store.compare_set(DECISION, before, _text(decision)).decode()
        return _decision(decided)

    def _notes(self, own: Note, lost: Callable[[], Iterable[int]]) -> dict[int, Note]:
        """The notes of the ranks that have come to this call."""
        deadline = time.monotonic() + self._patience_s
        notes, gone = {self._rank: own}, set(own.lost)
        while True:
            for rank in set(range(self._count)) - notes.keys() - gone:
                if self._store.check([str(rank)]):
                    note = Note(**json.loads(self._store.get(str(rank))))
                    if note.call >= self.calls:
                        notes[rank] = note
                        gone.update(note.lost)
            gone.update(lost())
            is_complete = len(notes.keys() | gone) == self._count
            if is_complete or time.monotonic() >= deadline or _decision(self._store.get(DECISION)).call >= self.calls:
                return notes
            time.sleep(LOOK_EVERY_S)


def _text(value: Decision | Note) -> str:
    return json.dumps(asdict(value))


def _decision(text: bytes | str) -> Decision:
    return Decision(**json.loads(text))


DIFFERENCES_SHOWN = 4
GROUP_DIGITS = 32
"""Of the hash of a group's ranks, by which its names in the store differ from those of other groups."""
_made: Counter[str] = Counter()  # by this process, for each group; equal on its ranks, which make them together


class AveragingGroup(NamedTuple):
    """made: the call of `average` in which its ranks made it; 0 before the first."""

    made: int
    ranks: list[int]
    group: dist.ProcessGroup | None


class Averaged(NamedTuple):
    """The ranks that took part, and the largest of the numbers that they gave."""

    present: list[int]
    largest: int


NONE = AveragingGroup(NO_GROUP, [], None)


class Ranks:
    """The ranks of `group`, by default all that torch.distributed has; without it, this process alone.

    rank, count: in that group. Raises ConfigError if this process is not in the group, or has been started as one of
    several that have no group, and RemoteError if the others do not come within the patience."""

    def __init__(self, group: dist.ProcessGroup | None, patience_s: float) -> None:
        self._patience_s = patience_s
        self.rank, self.count = 0, 1
        self.store: Any = None  # the store through which the ranks met; None for a rank alone
        self.lines: LineGroups | None = None  # for messages between two ranks
        if not (dist.is_available() and dist.is_initialized()):
            check_alone("Gossip")
            return
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ConfigError("Gossip: this process is not in the process group that it was given")
        if self.count == 1:
            return
        self.store = distributed_c10d._get_default_store()
        of_all = dist.get_process_group_ranks(group) if group else list(range(self.count))
        members = hashlib.sha256(json.dumps(of_all).encode()).hexdigest()[:GROUP_DIGITS]
        number = _made[members] + 1
        self._name = f"thinwire.gossip.{members}.{number}"  # in the store, which all groups share
        everyone = list(range(self.count))
        self._all = self._new_group("all", everyone)
        _made[members] = number
        self.lines = LineGroups(*(self._new_group(name, everyone) for name in LineGroups._fields))
        self._averaging = AveragingGroup(0, everyone, self._all)
        place = distributed_c10d.PrefixStore(f"{self._name}/averaging/", self.store)
        self._attendance = Attendance(place, self.rank, self.count, patience_s)

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
        if self.count == 1:
            return
        for tensor in tensors:
            if tensor.numel():
                sent = tensor.detach().to("cpu", copy=True).contiguous()
                with nobody_lost("got the values of rank 0"):
                    self._all.broadcast(sent.view(-1).view(torch.uint8), 0).wait()
                overwrite(tensor, sent)

    def average(
        self, tensors: Sequence[Tensor], lost: Callable[[], Iterable[int]], weight: float | None = None, number: int = 0
    ) -> Averaged:
        """Replace these tensors, of floats, by their mean over all ranks that take part.

        lost: the ranks that this one knows to be gone. weight: that of this rank's tensors; None, on all ranks, if all
        count alike. number: of which the largest of all ranks is returned. Raises RemoteError if the others went on
        without this rank, or if one of them dies meanwhile; the tensors may then have changed."""
        if self.count == 1:
            return Averaged([0], number)
        decision = self._attendance.agree(lost, self._averaging.made, self._averaging.ranks)
        present = decision.present
        if decision.call != self._attendance.calls or self.rank not in present:
            raise RemoteError(
                f"the other ranks have averaged without this one, which came more than {self._patience_s:g} s late"
            )
        averaging, self._averaging = self._averaging, NONE  # a group in which anything fails is not used again
        if averaging.made != decision.group:
            averaging = AveragingGroup(decision.group, present, self._new_group(f"averaging.{decision.group}", present))
        assert averaging.group is not None, "the ranks have agreed on a group that this one has"
        largest = torch.tensor(number)
        with nobody_lost("averaged"):
            averaging.group.allreduce(largest, dist.ReduceOp.MAX).wait()
        of_all = float(len(present))
        if weight is not None:
            of_all = float(_total(torch.tensor(weight, dtype=torch.float64), averaging.group))
        for tensor in tensors:
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            own = tensor.detach().to("cpu", wide, copy=True).contiguous()
            total = _total(own if weight is None else own.mul_(weight), averaging.group)
            overwrite(tensor, total.div_(of_all))
        self._averaging = averaging
        return Averaged(present, int(largest))

    def _gather(self, data: bytes) -> list[bytes]:
        with nobody_lost("compared their settings"):
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            self._all.allgather(sizes, torch.tensor([len(data)])).wait()
            longest = max(int(size) for size in sizes)
            padded = torch.tensor(list(data.ljust(longest)), dtype=torch.uint8)
            gathered = [torch.empty_like(padded) for _ in range(self.count)]
            self._all.allgather(gathered, padded).wait()
        return [bytes(row.tolist())[: int(size)] for row, size in zip(gathered, sizes, strict=True)]

    def _new_group(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup:
        return new_group(self.store, f"{self._name}/{name}", ranks, self.rank, self._patience_s)


def ranks_per_host(ranks: int) -> int:
    """The ranks on this host, as torchrun says; 1 if hosts have different numbers of them."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return here if here >= 1 and ranks % here == 0 else 1


def _total(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    with nobody_lost("averaged"):
        group.allreduce(tensor).wait()
    return tensor
