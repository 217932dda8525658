"""Leases: which node may train on which sample positions, and what became of each position.

The positions form one endless stream of passes over the corpus. The simple solution gives every node a new range of
positions in every round. It wastes the positions that slow nodes do not reach, and it loses the work of a node that
dies with its state. So each position has a state instead:

    free ─grant▶ granted ─report▶ trained ─settle▶ settled         trained: reported with a contribution
      ▲             │                │ ◀unsettle──┘                settled: that contribution was counted
      └─────────────┴───take back────┘                             the node is lost together with its state

Positions are granted in order: first those taken back, then those from the cursor on. (seed, pass, position) alone
determine the sample at a position; see `thinwire_proto.data.order.sample_at`. This module is pure. All leases together
are stored on disk as one short list.

Data may come in *blocks*: ranges of positions whose samples lie in one shard (see `DataSource.block`). Then a node is
granted positions of a block that is reserved for it alone, so that different nodes fetch different shards. The block
after it is reserved too, so that the node can fetch that shard before it needs it. A reserved position is neither free
nor granted. When the node leaves or is lost, it is free again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from thinwire_proto.errors import Damaged

TRAINED_RUNS_MAX = 1024
"""Ranges of a node that are trained and not settled. A node that is never counted, such as a suspected one, reports one
more in each round. The oldest then count as settled: they are in its momentum."""


@dataclass(frozen=True)
class SampleRange:
    """A range of `count` positions that begins at `start`."""

    start: int
    count: int


@dataclass
class _Held:
    """The lease of one node."""

    granted: list[SampleRange] = field(default_factory=list)  # in training order
    trained: list[SampleRange] = field(default_factory=list)
    reserved: list[SampleRange] = field(default_factory=list)  # the rest of its block, and the next block
    seen_step: int = 0
    packed: bytes = b""  # cached msgpack of `plain`; empty after a change

    def plain(self, node: str) -> list[Any]:
        return [node, self.seen_step, _plain(self.granted), _plain(self.trained), _plain(self.reserved)]


class Leases:
    """The leases of all nodes, and the positions that are free again."""

    def __init__(self) -> None:
        self.block: Callable[[int], range | None] = lambda position: None
        """See `DataSource.block`."""
        self.cursor = 0
        """The first position that was not granted, or not since `begin_again`."""
        # positions taken back: sorted, with adjacent ranges merged, so that leases are not fragmented
        self._free: deque[SampleRange] = deque()
        self._held: dict[str, _Held] = {}

    def granted(self, node: str) -> tuple[SampleRange, ...]:
        """The positions that a node may train on and has not yet reported."""
        held = self._held.get(node)
        return tuple(held.granted) if held else ()

    def reserved(self, node: str) -> tuple[SampleRange, ...]:
        """The positions that the node will be granted next, as far as this is known."""
        held = self._held.get(node)
        return tuple(held.reserved) if held else ()

    @property
    def holders(self) -> set[str]:
        """All nodes that have a lease, or have reported on one that is not settled."""
        return set(self._held)

    def holds(self, node: str) -> bool:
        return node in self._held

    def grant(self, node: str, samples: int, step: int) -> tuple[SampleRange, ...]:
        """Extend a node's lease to `samples` unreported positions, and return the whole lease."""
        held = self._held.setdefault(node, _Held())
        held.seen_step, held.packed = step, b""
        missing = samples - count(held.granted)
        while missing > 0:
            run, rest = _cut(held.reserved.pop(0) if held.reserved else self._next(missing), missing)
            if rest is not None:
                held.reserved.insert(0, rest)
            held.granted.append(run)
            missing -= run.count
        held.granted = _joined(held.granted)
        self._reserve_ahead(held)
        return tuple(held.granted)

    def _next(self, samples: int) -> SampleRange:
        """Take the next positions that nobody has: the rest of their block, or up to `samples` if there are no blocks.

        The free positions of a block are taken together, but positions of another block never with them."""
        start = self._free[0].start if self._free else self.cursor
        block = self.block(start)
        size = block.stop - start if block is not None else samples
        if not self._free:
            self.cursor += size
            return SampleRange(start, size)
        run, rest = _cut(self._free.popleft(), size)
        if rest is not None:
            self._free.appendleft(rest)
        return run

    def _reserve_ahead(self, held: _Held) -> None:
        """Reserve positions of the next block too, if there are blocks."""
        if not held.granted or (block := self.block(held.granted[-1].start + held.granted[-1].count - 1)) is None:
            return
        if all(run.start in block for run in held.reserved):
            held.reserved.append(self._next(0))

    def reported_samples(self, node: str, trained_through: int | None) -> int:
        """Count the granted positions that this mark would report; 0 if the mark is not in the node's lease."""
        held = self._held.get(node)
        before, _ = _split(held.granted, trained_through) if held else ([], [])
        return count(before)

    def reported(self, node: str, trained_through: int | None) -> tuple[SampleRange, ...]:
        """The granted positions that this mark would report, in training order."""
        held = self._held.get(node)
        return tuple(_split(held.granted, trained_through)[0]) if held else ()

    def report(self, node: str, trained_through: int | None) -> None:
        """Record that a node has trained on its lease up to and including this position."""
        held = self._to_change(node)
        if held is not None:
            before, held.granted = _split(held.granted, trained_through)
            held.trained = _joined(held.trained + before)[-TRAINED_RUNS_MAX:]

    def resume(self, node: str, trained_through: int | None) -> None:
        """Roll a returning node's lease back to the position that its momentum includes.

        The node's process lost whatever it reported beyond that position, so the node must train on it again.
        """
        held = self._to_change(node)
        if held is not None:
            before, rest = _split(held.trained + held.granted, trained_through)
            held.trained, held.granted = _joined(before), _joined(rest)

    def settle(self, node: str) -> list[SampleRange]:
        """Settle the reported positions, and return them. Their contribution counted, so they are in an update or in
        the momentum."""
        held = self._to_change(node)
        if held is None:
            return []
        settled, held.trained = held.trained, []
        return settled

    def unsettle(self, node: str, settled: list[SampleRange]) -> None:
        """Undo `settle`: the contribution was not counted after all. Those of a node that was lost are free."""
        held = self._to_change(node)
        if held is None:
            self._set_free(settled)
        else:
            held.trained = _joined(settled + held.trained)[-TRAINED_RUNS_MAX:]

    def give_back(self, node: str) -> None:
        """Free the unreported positions of a node that leaves and keeps its momentum."""
        held = self._to_change(node)
        if held is not None:
            self._set_free(held.granted + held.reserved)
            held.granted, held.reserved = [], []

    def take_back(self, node: str) -> None:
        """Free all unsettled positions of a node that is lost together with its state."""
        held = self._held.pop(node, None)
        if held is not None:
            self._set_free(held.trained + held.granted + held.reserved)

    def begin_again(self, samples: int) -> Callable[[], None]:
        """Begin again with the last `samples` positions that were settled, and with all that are not: nobody holds any
        of them from now on. Returns what undoes it."""
        before = self.cursor, self._free, self._held
        runs = [run for held in self._held.values() for run in held.granted + held.trained + held.reserved]
        self.cursor = max(0, self.cursor - samples - count([*self._free, *runs]))
        self._free, self._held = deque(), {}

        def undo() -> None:
            self.cursor, self._free, self._held = before

        return undo

    def _set_free(self, runs: list[SampleRange]) -> None:
        self._free = deque(_joined(sorted([*self._free, *runs], key=lambda run: run.start)))

    def seen(self, node: str, step: int) -> None:
        held = self._to_change(node)
        if held is not None:
            held.seen_step = step

    def away_since_before(self, step: int) -> list[str]:
        return [node for node, held in self._held.items() if held.seen_step < step]

    def _to_change(self, node: str) -> _Held | None:
        held = self._held.get(node)
        if held is not None:
            held.packed = b""
        return held

    def plain(self) -> list[Any]:
        """All leases as nested lists of numbers and strings."""
        return [self.cursor, _plain(self._free), [entry.plain(node) for node, entry in self._held.items()]]

    def packed(self) -> bytes:
        """`plain` in msgpack, with each unchanged node's entry taken from a cache.

        Every write covers all nodes and runs on the event loop. Without the cache, the return of one node out of a
        thousand would pack all thousand entries.
        """
        for node, entry in self._held.items():
            if not entry.packed:
                entry.packed = msgpack.packb(entry.plain(node))
        head, free = msgpack.packb(self.cursor), msgpack.packb(_plain(self._free))
        packer = msgpack.Packer()
        parts = [packer.pack_array_header(3), head, free, packer.pack_array_header(len(self._held))]
        return b"".join([*parts, *(entry.packed for entry in self._held.values())])

    @classmethod
    def from_plain(cls, plain: Any) -> Leases:
        """Restore leases from the output of `plain`. Raises Damaged if the structure is wrong."""
        leases = cls()
        try:
            leases.cursor, free, held = plain
            leases._free.extend(SampleRange(*run) for run in free)
            for node, seen_step, granted, trained, reserved in held:
                leases._held[node] = _Held(_ranges(granted), _ranges(trained), _ranges(reserved), seen_step)
        except (TypeError, ValueError) as error:
            raise Damaged(f"cannot read the leases on disk: {error}") from None
        return leases


def _ranges(plain: Iterable[Iterable[int]]) -> list[SampleRange]:
    return [SampleRange(*run) for run in plain]


def _plain(runs: Iterable[SampleRange]) -> list[list[int]]:
    return [[run.start, run.count] for run in runs]


def count(runs: list[SampleRange] | tuple[SampleRange, ...]) -> int:
    return sum(run.count for run in runs)


def _cut(run: SampleRange, size: int) -> tuple[SampleRange, SampleRange | None]:
    """Cut a range after `size` positions; the second part is None if it would be empty."""
    if run.count <= size:
        return run, None
    return SampleRange(run.start, size), SampleRange(run.start + size, run.count - size)


def _split(runs: list[SampleRange], through: int | None) -> tuple[list[SampleRange], list[SampleRange]]:
    """Split ranges after the position `through`. If no range contains it, the first part is empty."""
    for number, run in enumerate(runs):
        if through is not None and run.start <= through < run.start + run.count:
            size = through - run.start + 1
            before = [*runs[:number], SampleRange(run.start, size)]
            rest = [SampleRange(run.start + size, run.count - size)] if size < run.count else []
            return before, rest + runs[number + 1 :]
    return [], list(runs)


def _joined(runs: list[SampleRange]) -> list[SampleRange]:
    """Merge adjacent ranges, so that lists stay short."""
    joined: list[SampleRange] = []
    for run in runs:
        if joined and joined[-1].start + joined[-1].count == run.start:
            joined[-1] = SampleRange(joined[-1].start, joined[-1].count + run.count)
        else:
            joined.append(run)
    return joined
