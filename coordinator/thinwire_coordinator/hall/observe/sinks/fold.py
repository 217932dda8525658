"""Folds the events of a swarm to the points of its curves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import BeatSealed, DisagreementMeasured, Event, LossMeasured, RoundSealed
from thinwire_coordinator.hall.observe.sinks.memory import Totals
from thinwire_coordinator.hall.observe.sinks.port import CONSENSUS, HELD_OUT, TRAINING, Point


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
