"""The history of a run, for the page: its figures by step, the share of each node, and the void rounds.

`History` watches `events`: it is called on the event loop and takes microseconds. Steps that were sealed in earlier
terms are read from the ledger by `read_past`, off the event loop and in small pieces, and are prepended once all of
them are read.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import (
    BeatSealed,
    ContributionRefused,
    ContributionTaken,
    Event,
    LossMeasured,
    NodeCame,
    RoundSealed,
    RoundVoid,
    Sampled,
)
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.series import Bucket, ReadRow, Series, add_loss, with_loss
from thinwire_coordinator.hall.view import SHARES_TOLD_MAX, NodeShare, WholeRun
from thinwire_coordinator.hall.workers import Job

VOIDS_MAX = 50
"""Number of sequences of void rounds that are remembered."""
SHARES_MAX = 65_536
"""Number of nodes whose share is remembered. Nodes with the fewest tokens are dropped first."""
NAMES_MAX = 65_536
"""Number of node names that are remembered: the newest ones."""
MANNERS_MAX = 16_384
"""Number of nodes whose recent participation is remembered. No contract allows this many nodes at once."""
RATE_OVER_S = 30.0
RATE_STEPS_MAX = 512
ROWS_AT_ONCE = 256
"""Rows that one job reads from the ledger, so that other jobs can run in between."""


@dataclass
class Share:
    """A node's counted rounds and tokens over all terms of the coordinator."""

    rounds: int = 0
    tokens: int = 0


@dataclass
class Manner:
    """A node's recent participation. early_s: seconds from the arrival of its newest complete contribution to the
    deadline."""

    weight: int = 0
    early_s: float | None = None
    refused: ContributionRefused | None = None  # set if the newest contribution was refused


@dataclass
class Voids:
    """Consecutive void rounds with the same reason. at: time of the last one on the coordinator's clock, or None if it
    was in an earlier term."""

    first: int
    last: int
    why: str
    at: float | None = None


@dataclass
class Curve:
    """The losses on one held-out set. first, newest: (step, loss) of the whole run; None if none was measured.
    diverged: the step of a newer loss that is not finite."""

    series: Series = field(default_factory=Series)
    first: tuple[int, float] | None = None
    newest: tuple[int, float] | None = None
    diverged: int | None = None

    def add(self, step: int, loss: float) -> None:
        newest = self.diverged if self.diverged is not None else self.newest[0] if self.newest is not None else -1
        if step <= newest:
            return  # nodes were slower than the coordinator, which measures the last step itself
        if not math.isfinite(loss):
            self.diverged = step
            return
        self.diverged = None
        self.series.add(with_loss(step, loss))
        self.first = self.first or (step, loss)
        self.newest = (step, loss)

    def prepend(self, past: list[tuple[int, float]]) -> None:
        """Prepend the losses of earlier terms, oldest first."""
        earlier = Series()
        for step, loss in past:
            if self.first is None or step < self.first[0]:
                earlier.add(with_loss(step, loss))
        self.series.prepend(earlier)
        if past:
            self.first = past[0]
            self.newest = self.newest or past[-1]


@dataclass
class Past:
    """The history of the steps before this term, as read from the ledger."""

    series: Series = field(default_factory=Series)
    held_out: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    voids: list[tuple[int, int, str]] = field(default_factory=list)
    rounds_void: int = 0


class History:
    """Collects the figures of a run by watching its events.

    counts: the counts of this term; they must be updated before `watch` is called. step: number of steps before this
    term. started: when this term began, on the clock of the events. sets: names of the held-out sets. rows: of the
    ledger before this term, if a row is not a step.
    """

    def __init__(self, counts: Counts, step: int, started: float, sets: Iterable[str], rows: int | None = None) -> None:
        self._counts = counts
        self._bytes_before = (0, 0, 0)  # up, down and dense, as of the previous sealed step
        self._shares_before: dict[str, Share] = {}
        self._sealed: deque[tuple[float, int]] = deque(maxlen=RATE_STEPS_MAX)  # time, and tokens since the start
        self.since_step = self.step = step
        """step: the newest of the series, updates sealed or the median iteration of a gossip run."""
        self.started = started
        self.rows_before = step if rows is None else rows
        self.complete = self.rows_before == 0
        """Whether the steps of earlier terms are included."""
        self.series = Series()
        self.held_out = {name: Curve() for name in sets}
        """By the name of the held-out set."""
        self.tokens_before = 0
        """Tokens of earlier terms."""
        self.rounds_void_before = 0
        self.sample: Sampled | None = None
        self.names: dict[str, str] = {}
        """Names of nodes, including nodes that have not joined in this term."""
        self.manners: dict[str, Manner] = {}
        self.voids: deque[Voids] = deque(maxlen=VOIDS_MAX)

    def watch(self, event: Event) -> None:
        if isinstance(event, ContributionTaken):
            manner = self._manner(event.node_id)
            manner.early_s, manner.refused = event.before_deadline_s, None
        elif isinstance(event, ContributionRefused):
            self._manner(event.node_id).refused = event
        elif isinstance(event, RoundSealed):
            self._add(Bucket(event.step + 1, event.tokens, event.update_bytes), event, (event.loss,))
            for entry in event.counted:
                self._manner(entry.node).weight = entry.weight
        elif isinstance(event, BeatSealed):
            self._add(Bucket(event.iterations[1], event.tokens), event, event.losses)
        elif isinstance(event, RoundVoid):
            self._void(event)
        elif isinstance(event, LossMeasured):
            self.held_out.setdefault(event.name, Curve()).add(event.step, event.loss)
        elif isinstance(event, Sampled):
            self.sample = event

    def tokens_per_s(self, now: float) -> float:
        """Mean rate over about the last `RATE_OVER_S` seconds."""
        while len(self._sealed) > 2 and now - self._sealed[1][0] > RATE_OVER_S:
            self._sealed.popleft()
        if len(self._sealed) < 2:
            return 0.0
        then, before = self._sealed[0]
        return (self._sealed[-1][1] - before) / max(now - then, 1e-3)

    def share(self, node: str) -> Share:
        before, since = self._shares_before.get(node, Share()), self._counts.nodes.get(node)
        if since is None:
            return before
        return Share(before.rounds + since.counted, before.tokens + since.tokens)

    def shares(self) -> dict[str, Share]:
        return {node: self.share(node) for node in {*self._shares_before, *self._gave()}}

    def _gave(self) -> list[str]:
        """The nodes with a counted contribution in this term."""
        return [node for node, counts in self._counts.nodes.items() if counts.counted]

    def whole_run(self, asked: str = "") -> WholeRun | None:
        """Figures of all terms; None until those of earlier ones are read. Its time grows with the nodes of this term
        alone, because anybody may ask. asked: the node whose share is told too."""
        if not self.complete:
            return None
        gave = self._gave()  # a node that gave nothing in this term is among the first before, or not among the first
        shares = [(node, self.share(node)) for node in {*islice(self._shares_before, SHARES_TOLD_MAX), *gave}]
        most = heapq.nlargest(SHARES_TOLD_MAX, shares, key=lambda item: (item[1].tokens, item[0]))
        return WholeRun(
            self.tokens_before + self._counts.tokens,
            self.since_step,
            len(self._shares_before) + sum(node not in self._shares_before for node in gave),
            tuple(self._told(node, share) for node, share in most),
            self._told(asked, self.share(asked)),
        )

    def _told(self, node: str, share: Share) -> NodeShare:
        return NodeShare(node, self.names.get(node, ""), share.rounds, share.tokens)

    def know_name(self, node: str, name: str) -> None:
        self.names[node] = name
        if len(self.names) > NAMES_MAX:
            del self.names[next(iter(self.names))]

    def begin_with(self, past: Past) -> None:
        self.series.prepend(past.series)
        for name, curve in self.held_out.items():
            curve.prepend(past.held_out.get(name, []))
        by_tokens = sorted(past.shares.items(), key=lambda item: item[1].tokens, reverse=True)
        self._shares_before = dict(by_tokens[:SHARES_MAX])
        self.tokens_before = sum(share.tokens for share in past.shares.values())
        for node, name in (past.names | self.names).items():
            self.know_name(node, name)
        room = VOIDS_MAX - len(self.voids)
        self.voids.extendleft(Voids(*entry) for entry in past.voids[::-1][:room])
        self.rounds_void_before = past.rounds_void
        self.complete = True

    def _add(self, bucket: Bucket, event: RoundSealed | BeatSealed, losses: Sequence[float]) -> None:
        """Add a sealed round or beat. losses: of the round, or of each node in the beat."""
        up, down, dense = self._counts.bytes_up, self._counts.bytes_down, self._counts.dense_bytes
        before_up, before_down, before_dense = self._bytes_before
        self._bytes_before = (up, down, dense)
        bucket.step = self.step = max(bucket.step, self.step)  # nodes that come may be behind
        bucket.bytes_up, bucket.bytes_down = up - before_up, down - before_down
        bucket.dense_bytes = dense - before_dense
        bucket.nodes = len({entry.node for entry in event.counted})
        bucket.at_s = event.at - self.started
        add_loss(bucket, event.loss, losses)
        self.series.add(bucket)
        self._sealed.append((event.at, self._counts.tokens))

    def _manner(self, node: str) -> Manner:
        if node not in self.manners:
            if len(self.manners) >= MANNERS_MAX:
                del self.manners[next(iter(self.manners))]
            self.manners[node] = Manner()
        return self.manners[node]

    def _void(self, event: RoundVoid) -> None:
        newest = self.voids[-1] if self.voids else None
        if newest is not None and (newest.last, newest.why) == (event.round - 1, event.why):
            newest.last, newest.at = event.round, event.at
        else:
            self.voids.append(Voids(event.round, event.round, event.why, event.at))


async def read_past(
    ledger: Ledger,
    term: int,
    stop: int,
    tokens_a_sample: int,
    sets: Iterable[str],
    submit: Callable[[Callable[[], None]], Awaitable[None]],
    read_row: ReadRow,
) -> Past:
    """Read the history of the rows before `stop` and of the terms before `term`.

    sets: names of the held-out sets. `submit` runs one piece of the work, which takes milliseconds, on a worker thread.
    read_row: makes the bucket of a row.
    Raises LedgerError.
    """
    past = Past()

    def read_lists() -> None:
        past.rounds_void, past.voids = ledger.voids_before(term, VOIDS_MAX)
        past.held_out = {name: ledger.losses(name) for name in sets}
        past.names = ledger.names(NAMES_MAX)

    def read_rows(start: int) -> None:
        for step, body_bytes, counted in ledger.counted_at(start, min(start + ROWS_AT_ONCE, stop)):
            tokens = sum(samples for _, samples in counted) * tokens_a_sample
            past.series.add(read_row(step, body_bytes, tokens, counted))
            for node, samples in counted:
                share = past.shares.setdefault(node, Share())
                share.rounds += 1
                share.tokens += samples * tokens_a_sample

    await submit(read_lists)
    for start in range(0, stop, ROWS_AT_ONCE):
        await submit(partial(read_rows, start))
    return past


NAMES_EVERY_S = 1.0


class NodeNames:
    """Keeps the names of nodes in the history and in the ledger, so that those that have left are thanked by name.

    Writes those of NAMES_EVERY_S at once, because a thousand nodes may rejoin together."""

    def __init__(self, run: Run, history: History) -> None:
        self._run = run
        self._history = history
        self._new: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        run.events.watchers.append(self._watch)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, event: Event) -> None:
        if not isinstance(event, NodeCame):
            return
        member = self._run.view.members.get(event.node_id)
        if member is None or self._history.names.get(event.node_id) == member.name:
            return
        self._history.know_name(event.node_id, member.name)
        self._new[event.node_id] = member.name
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NAMES_EVERY_S, self._write)

    def _write(self) -> None:
        names, self._new, self._timer = self._new, {}, None
        record = self._run.state.upkeep_ledger.record_names
        work = self._run.workers.once_unlocked(Job.WRITE_NAMES, record, names)
        self._run.events.keep("writing the names of nodes", work)
