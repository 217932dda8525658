"""The order of samples in sharded data: random, and yet a node reads one shard after another.

A permutation of all samples would make each node read a bit of every shard. Reading the shards in their own order would
make neighbouring samples alike. So the order is made of two permutations: of the shards in a pass, and of the samples
in a shard. A mixture interleaves the streams of its sources, sample by sample.

Definition. Shard j of a source has nⱼ ≥ 1 samples, and the source has n = Σ nⱼ. P(seed, n, i) is entry i of the endless
stream of permutations of n things (`thinwire_proto.data.order.sample_at`).

* The *stream of a source* is endless. Its entry i belongs to pass q = i div n. The pass has the shards in the order
  P(seedₛ, S, q·S), P(seedₛ, S, q·S + 1), …; S is the number of shards, and seedₛ = mix64(seed + (s + 1)·GOLDEN) for
  source number s. Each shard is read as a whole: entry r of shard j in pass q is its sample P(seedₛⱼ, nⱼ, q·nⱼ + r),
  with seedₛⱼ = mix64(seedₛ + (j + 1)·GOLDEN).
* The *mixture* has whole numbers mₛ, one for each source, in the ratio of the weights; M = Σ mₛ. Of the M positions of
  each cycle, source 0 has those where ⌊(p + 1)·m₀ / M⌋ > ⌊p·m₀ / M⌋. The other sources divide the rest in the same way,
  one after another. So each cycle draws exactly mₛ times from source s, as evenly as possible.
* Without weights, mₛ is the number of samples of source s. A cycle is then one pass over everything.

A *block* is a range of positions whose samples of the main source, which is the first of those that are drawn most, lie
in one shard. If that source has few shards, each is divided into several blocks. The coordinator leases whole blocks to
nodes, so that different nodes read different shards.

All of it is integer arithmetic. A lookup takes O(sources + log shards), and the order of a pass O(shards) once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import NamedTuple

from thinwire_proto.data.order import sample_at
from thinwire_proto.exact.mix64 import GOLDEN, mix64

END = 1 << 66
"""Above all positions."""
BLOCKS_MIN = 8
"""Fewest blocks in a pass over the main source, so that a few nodes do not each begin a pass of their own."""
PASSES_KEPT = 4
"""Orders of shards that a source keeps in memory."""


class Place(NamedTuple):
    """The place of a sample: the number of the source, of its shard, and of the sample in that shard."""

    source: int
    shard: int
    sample: int


class ShardRun(NamedTuple):
    """The entries [start, stop) of a source's stream that lie in one shard, in one pass."""

    shard: int
    number: int  # of the pass
    start: int
    stop: int


def ratio_of(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest whole numbers in the ratio of the weights, as they are written in decimal: 0.7, 0.3 gives 7, 3."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    common = lcm(*(one.denominator for one in exact))
    whole = [int(one * common) for one in exact]
    divisor = gcd(*whole)
    return tuple(one // divisor for one in whole)


class SourceOrder:
    """The stream of one source. samples: of each shard, all at least 1. seed: the source's own."""

    def __init__(self, samples: Sequence[int], seed: int) -> None:
        self.samples = tuple(samples)
        self.total = sum(samples)
        self._seed = seed
        self._passes = lru_cache(maxsize=PASSES_KEPT)(self._pass)

    def run_at(self, entry: int) -> ShardRun:
        """The run of entries around `entry` that lie in its shard."""
        number, within = divmod(entry, self.total)
        shards, starts = self._passes(number)
        slot = bisect_right(starts, within) - 1
        first = number * self.total + starts[slot]
        return ShardRun(shards[slot], number, first, first + self.samples[shards[slot]])

    def sample_at(self, entry: int) -> tuple[int, int]:
        """The shard of an entry, and the sample in that shard."""
        run = self.run_at(entry)
        size = self.samples[run.shard]
        seed = mix64(self._seed + (run.shard + 1) * GOLDEN)
        return run.shard, sample_at(run.number * size + entry - run.start, seed, size)

    def _pass(self, number: int) -> tuple[list[int], list[int]]:
        """The shards of a pass in order, and the entry within the pass at which each begins."""
        count = len(self.samples)
        shards = [sample_at(number * count + slot, self._seed, count) for slot in range(count)]
        starts, start = [], 0
        for shard in shards:
            starts.append(start)
            start += self.samples[shard]
        return shards, starts


class ShardOrder:
    """The whole order from a position on. samples: of each shard of each source. weights: of each source; None draws by
    size. start: the position. drawn: entries of each source's stream before it, none by default."""

    def __init__(
        self,
        samples: Sequence[Sequence[int]],
        seed: int,
        weights: Sequence[float] | None = None,
        start: int = 0,
        drawn: Sequence[int] = (),
    ) -> None:
        self.start = start
        self._drawn = tuple(drawn) or (0,) * len(samples)
        seeds = [mix64(seed + (number + 1) * GOLDEN) for number in range(len(samples))]
        self.sources = [SourceOrder(shards, own) for shards, own in zip(samples, seeds, strict=True)]
        self.ratio = ratio_of(weights) if weights else tuple(source.total for source in self.sources)
        self.cycle = sum(self.ratio)
        self._main = self.ratio.index(max(self.ratio))
        self._blocks_a_shard = -(-BLOCKS_MIN // len(samples[self._main]))

    def place(self, position: int) -> Place:
        """The sample at a position in the endless stream."""
        cycle, left = divmod(position - self.start, self.cycle)
        width = self.cycle
        for number, share in enumerate(self.ratio):
            before = left * share // width
            if (left + 1) * share // width > before:
                return Place(number, *self.sources[number].sample_at(self._drawn[number] + cycle * share + before))
            left, width = left - before, width - share
        raise AssertionError("the last source has all positions that are left")

    def drawn_before(self, position: int) -> list[int]:
        """For each source, how many positions before this one belong to it."""
        cycle, left = divmod(position - self.start, self.cycle)
        width, drawn = self.cycle, []
        for share, earlier in zip(self.ratio, self._drawn, strict=True):
            before = left * share // width if share else 0  # if the last source has no samples, the width is 0
            drawn.append(earlier + cycle * share + before)
            left, width = left - before, width - share
        return drawn

    def after(self, source: int, entries: int) -> int:
        """The first position before which at least `entries` positions belong to a source."""
        share = self.ratio[source]
        cycle = max(0, entries - self._drawn[source] - 1) // share
        low, high = self.start + cycle * self.cycle, self.start + (cycle + 1) * self.cycle
        while low < high:
            middle = (low + high) // 2
            if self.drawn_before(middle)[source] >= entries:
                high = middle
            else:
                low = middle + 1
        return low

    def block(self, position: int) -> range:
        """The block around a position."""
        main = self._main
        entry = self.drawn_before(position)[main]
        run = self.sources[main].run_at(entry)
        size = -(-(run.stop - run.start) // self._blocks_a_shard)
        start = run.start + (entry - run.start) // size * size
        return range(self.after(main, start), self.after(main, min(run.stop, start + size)))

    def shards(self, positions: range) -> Iterator[tuple[int, int, int]]:
        """For each shard that samples at these positions lie in: its first position, its source, and its number."""
        begin, end = self.drawn_before(positions.start), self.drawn_before(positions.stop)
        for number, first in enumerate(begin):
            entry = first
            while entry < end[number]:
                run = self.sources[number].run_at(entry)
                yield self.after(number, entry + 1) - 1, number, run.shard
                entry = run.stop


class Mixtures:
    """Orders that follow each other. Each holds from its start until that of the next one, and each source goes on with
    the entry at which the one before has stopped: no sample comes twice in a pass over its source, and none is left
    out."""

    def __init__(self, orders: Sequence[ShardOrder]) -> None:
        self._orders = orders
        self._starts = [order.start for order in orders]

    def place(self, position: int) -> Place:
        """See `ShardOrder.place`."""
        return self._orders[self._at(position)].place(position)

    def block(self, position: int) -> range:
        """See `ShardOrder.block`. No block is in two orders."""
        at = self._at(position)
        found = self._orders[at].block(position)
        return range(found.start, min(found.stop, self._end(at)))

    def shards(self, positions: range) -> Iterator[tuple[int, int, int]]:
        """See `ShardOrder.shards`."""
        for at, order in enumerate(self._orders):
            if part := range(max(positions.start, order.start), min(positions.stop, self._end(at))):
                yield from order.shards(part)

    def mean(self, of_sources: Sequence[float]) -> float:
        """The mean over the samples of the last order of a value that each source has."""
        last = self._orders[-1]
        pairs = zip(last.ratio, of_sources, strict=True)
        return sum(share * value for share, value in pairs) / last.cycle

    def _at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _end(self, at: int) -> int:
        return self._starts[at + 1] if at + 1 < len(self._starts) else END
