"""Folds the events of a swarm to points of its curves, and remembers what a sink has got over restarts.

The ledger has every token, but neither the bytes nor what a sink got. The memory is written after the points, so a
coordinator that is killed in between forgets the bytes of one step. It never repeats a step of the training curve,
because a step is sealed before its point is made.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from thinwire_common.files import replace_whole
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import BeatSealed, DisagreementMeasured, Event, LossMeasured, RoundSealed
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.observe.sinks.worker import CONSENSUS, HELD_OUT, TRAINING, Point, Sink

log = logging.getLogger("thinwire.coordinator")

ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Totals:
    """Sums over the whole run. step: rows of the ledger by then."""

    step: int = 0
    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass
class Memory:
    """The memory of one sink. target: where it writes; a new target begins new curves. run_id: names this run's curves
    there. written: number of points. newest: newest step by series."""

    path: Path
    target: str
    run_id: str
    written: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)

    def save(self) -> None:
        kept = asdict(self)
        del kept["path"]
        replace_whole(self.path, json.dumps(kept).encode())


def recall(path: Path, target: str) -> Memory:
    """Read the memory at `path`, or begin one. A damaged file begins a new one, with a warning."""
    found = Memory(path, target, secrets.token_hex(4))
    try:
        kept = json.loads(path.read_bytes())
        found.totals = Totals(**kept["totals"])
        if kept["target"] == target:
            found.run_id, found.written = str(kept["run_id"]), int(kept["written"])
            found.newest = {str(series): int(step) for series, step in kept["newest"].items()}
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%r), so its curves begin anew", path, error)
    return found


class Continued:
    """A sink that gets each step of a series once, also over restarts."""

    def __init__(self, sink: Sink, memory: Memory) -> None:
        self._sink = sink
        self._memory = memory

    def write(self, points: Sequence[Point]) -> None:
        memory, fresh = self._memory, []
        newest = dict(memory.newest)
        for point in points:
            if point.step > newest.get(point.series, -1):
                newest[point.series] = point.step
                fresh.append(point)
        if not fresh:
            return
        self._sink.write(fresh)
        memory.newest, memory.written = newest, memory.written + len(fresh)
        for point in fresh:
            if point.series == TRAINING:
                memory.totals = _totals(point)
        memory.save()

    def close(self) -> None:
        self._sink.close()


def _totals(point: Point) -> Totals:
    rows = point.step if point.rows is None else point.rows
    return Totals(rows, point.tokens, point.bytes_up, point.bytes_down)


def totals_at(stop: int, known: Sequence[Totals], ledger: Ledger, tokens_a_sample: int) -> Totals:
    """The totals at step `stop`: the newest known ones, and the tokens of the ledger's rows since. Raises LedgerError.

    Reads few rows, unless a sink is new on a long run. The bytes of rows that no sink knows are missing.
    """
    newest = max((totals for totals in known if totals.step <= stop), key=lambda totals: totals.step, default=Totals())
    tokens = newest.tokens
    for start in range(newest.step, stop, ROWS_AT_ONCE):
        for _, _, counted in ledger.counted_at(start, min(start + ROWS_AT_ONCE, stop)):
            tokens += sum(samples for _, samples in counted) * tokens_a_sample
    return Totals(stop, tokens, newest.bytes_up, newest.bytes_down)


class Fold:
    """Watches a swarm's events, on the event loop, and gives points.

    counts: of this term; they are updated before `watch` is called. before: totals of earlier terms. wall: the time of
    day, as Unix time.
    """

    def __init__(
        self, counts: Counts, before: Totals, give: Callable[[Point], None], wall: Callable[[], float] = time.time
    ) -> None:
        self._counts = counts
        self._before = before
        self._give = give
        self._wall = wall
        self._sealed_at: float | None = None

    def watch(self, event: Event) -> None:
        match event:
            case RoundSealed():
                self._add(event, event.step + 1, event.step + 1, {})
            case BeatSealed():
                self._beat(event)
            case DisagreementMeasured():
                values = {"consensus/distance": event.distance}
                if event.in_steps is not None:
                    values["consensus/in_steps"] = event.in_steps
                self._give(Point(CONSENSUS, event.iteration, self._wall(), values))
            case LossMeasured():
                values = {f"loss/held_out/{event.name}": event.loss}
                self._give(Point(f"{HELD_OUT} {event.name}", event.step, self._wall(), values))

    def _beat(self, event: BeatSealed) -> None:
        least, median, most = event.iterations
        more: dict[str, float] = {"beats": event.beat + 1, "iterations/least": least, "iterations/most": most}
        if event.losses:
            more |= {"loss/node/least": min(event.losses), "loss/node/most": max(event.losses)}
        self._add(event, median, event.beat + 1, more)

    def _add(self, event: RoundSealed | BeatSealed, step: int, rows: int, more: Mapping[str, float]) -> None:
        """Give the point of a sealed round or beat. rows: of the ledger. more: values of one of the two alone."""
        counts, before = self._counts, self._before
        tokens = before.tokens + counts.tokens
        up, down = before.bytes_up + counts.bytes_up, before.bytes_down + counts.bytes_down
        values: dict[str, float] = {
            "loss/training": event.loss,
            "learning_rate": event.learning_rate,
            "nodes": len({entry.node for entry in event.counted}),
            "tokens": tokens,
            "bytes/up": up,
            "bytes/down": down,
        }
        if self._sealed_at is not None and event.at > self._sealed_at:
            values["tokens_per_s"] = event.tokens / (event.at - self._sealed_at)
        self._sealed_at = event.at
        if not math.isfinite(event.loss) and isinstance(event, BeatSealed):
            del values["loss/training"]  # a beat without samples
        self._give(Point(TRAINING, step, self._wall(), {**values, **more}, tokens, up, down, rows))
