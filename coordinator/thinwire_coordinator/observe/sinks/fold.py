"""Folds the events of a swarm to the points of its curves."""

from __future__ import annotations

import time
from collections.abc import Callable

from thinwire_coordinator.observe.sinks.memory import Totals
from thinwire_coordinator.observe.sinks.port import HELD_OUT, TRAINING, Point
from thinwire_coordinator.swarm.counts import Counts
from thinwire_coordinator.swarm.events import Event, LossMeasured, RoundSealed


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
                self._seal(event)
            case LossMeasured():
                values = {f"loss/held_out/{event.name}": event.loss}
                self._give(Point(f"{HELD_OUT} {event.name}", event.step, self._wall(), values))

    def _seal(self, event: RoundSealed) -> None:
        counts, before = self._counts, self._before
        tokens = before.tokens + counts.tokens
        up, down = before.bytes_up + counts.bytes_up, before.bytes_down + counts.bytes_down
        values = {
            "loss/training": event.loss,
            "learning_rate": event.learning_rate,
            "nodes": len(event.counted),
            "tokens": tokens,
            "bytes/up": up,
            "bytes/down": down,
        }
        if self._sealed_at is not None and event.at > self._sealed_at:
            values["tokens_per_s"] = event.tokens / (event.at - self._sealed_at)
        self._sealed_at = event.at
        self._give(Point(TRAINING, event.step + 1, self._wall(), values, tokens, up, down))
