"""Agrees among the ranks who takes part in an averaging, through the store by which they met.

Averaging has to work after a rank has died. Each rank notes its presence, and whom it has lost. The first that sees all
others present or lost, or has waited long enough, writes the decision; all others take what is written.

Notes and decision carry the number of the call, and are overwritten by the next: the store does not grow, and a rank
that comes late finds a newer decision instead of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from torch.distributed.distributed_c10d import Store

from thinwire.gossip.rendezvous import LOOK_EVERY_S, store_answers

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
    """Of `rank`, one of `count`. store: of these ranks alone. calls: of `agree`, by this rank."""

    def __init__(self, store: Store, rank: int, count: int, patience_s: float) -> None:
        self._store = store
        self._rank, self._count = rank, count
        self._patience_s = patience_s
        self.calls = 0
        with store_answers():
            store.compare_set(DECISION, "", _text(Decision(0, list(range(count)), 0)))

    def agree(self, lost: Callable[[], Iterable[int]], group: int, ranks: Iterable[int]) -> Decision:
        """The decision of this call; of a later one if the others went on without this rank.

        lost: the ranks that this one knows to be gone. group, ranks: what this rank has.
        """
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
            if is_complete or time.monotonic() >= deadline or self._is_decided():
                return notes
            time.sleep(LOOK_EVERY_S)

    def _is_decided(self) -> bool:
        return _decision(self._store.get(DECISION)).call >= self.calls


def _text(value: Decision | Note) -> str:
    return json.dumps(asdict(value))


def _decision(text: bytes | str) -> Decision:
    return Decision(**json.loads(text))
