"""Keeps a sink's newest steps and totals in the state directory. So a restarted coordinator continues its curves.

The ledger has every token, but neither the bytes nor what a sink got. The memory is written after the points, so a
coordinator that is killed in between forgets the bytes of one step. It never repeats a step of the training curve,
because a step is sealed before its point is made.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from thinwire_common.files import replace_whole
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.observe.sinks.port import TRAINING, Point, Sink

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

    def __init__(self, sink: Sink[Point], memory: Memory) -> None:
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
