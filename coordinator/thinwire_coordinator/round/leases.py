"""Leases on samples: who may train on which positions of the endless stream of passes, and what became of them.

The simple answer, a new run of positions for everybody in every round, wastes whatever slow nodes do not come to, and
loses what a node had trained on when it dies with its state. So a position goes through states, and never back but
in one way:

    free ─grant▶ granted ─report▶ trained ─settle▶ settled         reported with a contribution; that one was counted
      ▲             │                │
      └─────────────┴───take back────┘                             the node is lost with its state

Positions are granted in order: those taken back first, then from the cursor on. Which sample stands at a position
follows from (seed, pass, position) alone: `thinwire_proto.data.order.sample_at`. Pure; the whole of it goes on disk
as a
short list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from thinwire_proto.errors import Damaged


@dataclass(frozen=True)
class SampleRange:
    """`count` positions from `start` on."""

    start: int
    count: int


@dataclass
class _Held:
    granted: list[SampleRange] = field(default_factory=list)  # in the order in which they are to be trained on
    trained: list[SampleRange] = field(default_factory=list)
    seen_step: int = 0
    packed: bytes = b""  # of all this, until it changes

    def plain(self, node: str) -> list[Any]:
        return [node, self.seen_step, _plain(self.granted), _plain(self.trained)]


class Leases:
    def __init__(self) -> None:
        self.cursor = 0
        """The first position that nobody was given yet."""
        self._free: deque[SampleRange] = (
            deque()
        )  # taken back; in order, neighbours made one, so that leases are not in shreds
        self._held: dict[str, _Held] = {}

    def granted(self, node: str) -> tuple[SampleRange, ...]:
        """What a node may train on, as far as it has reported."""
        held = self._held.get(node)
        return tuple(held.granted) if held else ()

    def holds(self, node: str) -> bool:
        return node in self._held

    def grant(self, node: str, samples: int, step: int) -> tuple[SampleRange, ...]:
        """Fill a node's lease up to `samples` positions that it has not reported as trained."""
        held = self._held.setdefault(node, _Held())
        held.seen_step, held.packed = step, b""
        missing = samples - count(held.granted)
        while missing > 0:
            if not self._free:
                self._free.append(SampleRange(self.cursor, missing))
                self.cursor += missing
            run = self._free.popleft()
            if run.count > missing:
                self._free.appendleft(SampleRange(run.start + missing, run.count - missing))
                run = SampleRange(run.start, missing)
            held.granted.append(run)
            missing -= run.count
        held.granted = _joined(held.granted)
        return tuple(held.granted)

    def reported_samples(self, node: str, trained_through: int | None) -> int:
        """How many granted positions a node would report with this mark; 0 if it was granted no such position."""
        held = self._held.get(node)
        before, _ = _split(held.granted, trained_through) if held else ([], [])
        return count(before)

    def report(self, node: str, trained_through: int | None) -> None:
        """A node has trained on its lease up to and including this position."""
        held = self._to_change(node)
        if held is not None:
            before, held.granted = _split(held.granted, trained_through)
            held.trained = _joined(held.trained + before)

    def resume(self, node: str, trained_through: int | None) -> None:
        """A node comes back with a momentum that holds what it trained on up to here: what it reported beyond that was
        lost with its process, and is to be trained on again."""
        held = self._to_change(node)
        if held is not None:
            before, rest = _split(held.trained + held.granted, trained_through)
            held.trained, held.granted = _joined(before), _joined(rest)

    def settle(self, node: str) -> None:
        """A contribution was counted: what the node reported is in an update, or in its momentum."""
        held = self._to_change(node)
        if held is not None:
            held.trained = []

    def give_back(self, node: str) -> None:
        """A node leaves, and keeps its momentum: what it has not reported is free."""
        held = self._to_change(node)
        if held is not None:
            self._set_free(held.granted)
            held.granted = []

    def take_back(self, node: str) -> None:
        """A node is lost with its state: all that it held and that is in no update is free."""
        held = self._held.pop(node, None)
        if held is not None:
            self._set_free(held.trained + held.granted)

    def _set_free(self, runs: list[SampleRange]) -> None:
        self._free = deque(_joined(sorted([*self._free, *runs], key=lambda run: run.start)))

    def seen(self, node: str, step: int) -> None:
        held = self._to_change(node)
        if held is not None:
            held.seen_step = step

    def away_since_before(self, step: int) -> list[str]:
        """Nodes not seen since a step before this one."""
        return [node for node, held in self._held.items() if held.seen_step < step]

    def _to_change(self, node: str) -> _Held | None:
        held = self._held.get(node)
        if held is not None:
            held.packed = b""
        return held

    def plain(self) -> list[Any]:
        """All of it, as lists of numbers and strings."""
        return [self.cursor, _plain(self._free), [entry.plain(node) for node, entry in self._held.items()]]

    def packed(self) -> bytes:
        """`plain` in msgpack. What has not changed is not packed anew: when one of a thousand nodes comes back, all of
        it is written, and nothing else is done meanwhile."""
        for node, entry in self._held.items():
            if not entry.packed:
                entry.packed = msgpack.packb(entry.plain(node))
        head, free = msgpack.packb(self.cursor), msgpack.packb(_plain(self._free))
        packer = msgpack.Packer()
        parts = [packer.pack_array_header(3), head, free, packer.pack_array_header(len(self._held))]
        return b"".join([*parts, *(entry.packed for entry in self._held.values())])

    @classmethod
    def from_plain(cls, plain: Any) -> Leases:
        """Raises Damaged if this is not what `plain` gave."""
        leases = cls()
        try:
            leases.cursor, free, held = plain
            leases._free.extend(SampleRange(*run) for run in free)
            for node, seen_step, granted, trained in held:
                leases._held[node] = _Held(
                    [SampleRange(*run) for run in granted], [SampleRange(*run) for run in trained], seen_step
                )
        except (TypeError, ValueError) as error:
            raise Damaged(f"the leases on disk cannot be read: {error}") from None
        return leases


def _plain(runs: Iterable[SampleRange]) -> list[list[int]]:
    return [[run.start, run.count] for run in runs]


def count(runs: list[SampleRange] | tuple[SampleRange, ...]) -> int:
    return sum(run.count for run in runs)


def _split(runs: list[SampleRange], through: int | None) -> tuple[list[SampleRange], list[SampleRange]]:
    """Runs up to and including a position, and the rest; nothing and all if it is in none of them."""
    for number, run in enumerate(runs):
        if through is not None and run.start <= through < run.start + run.count:
            size = through - run.start + 1
            before = [*runs[:number], SampleRange(run.start, size)]
            rest = [SampleRange(run.start + size, run.count - size)] if size < run.count else []
            return before, rest + runs[number + 1 :]
    return [], list(runs)


def _joined(runs: list[SampleRange]) -> list[SampleRange]:
    """Neighbours made one, so that lists stay short."""
    joined: list[SampleRange] = []
    for run in runs:
        if joined and joined[-1].start + joined[-1].count == run.start:
            joined[-1] = SampleRange(joined[-1].start, joined[-1].count + run.count)
        else:
            joined.append(run)
    return joined
