"""Tests what beats of a gossip run become: counts, the page's history, metrics, and the points of sinks."""

from __future__ import annotations

from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import BeatSealed, DisagreementMeasured, Event, NodeProgress
from thinwire_coordinator.hall.measurement import weighted_median
from thinwire_coordinator.hall.observe.history import History
from thinwire_coordinator.hall.observe.sinks.memory import Fold, Totals
from thinwire_coordinator.hall.observe.sinks.worker import CONSENSUS, TRAINING, Point
from thinwire_proto.wire.rows import Counted

PARAMETERS = 1000


CONTEXT = 32
SAMPLES = 8


def beat(number: int, iterations: tuple[int, int, int], losses: dict[str, float], at: float = 0.0) -> BeatSealed:
    """A beat in which each node of `losses` reports one iteration of SAMPLES samples."""
    counted = tuple(Counted(node, b"", 1, SAMPLES) for node in losses)
    loss = weighted_median((loss, 1) for loss in losses.values())
    return BeatSealed(
        beat=number, at=at, counted=counted, tokens_a_sample=CONTEXT,
        progress={node: NodeProgress(iterations[1], loss) for node, loss in losses.items()},
        iterations=iterations, iterations_done=len(losses), members=len(losses), loss=loss, learning_rate=1e-3,
    )  # fmt: skip


class Watched:
    """Counts, history and points of the same events, in the order of a swarm's watchers."""

    def __init__(self, before: Totals | None = None) -> None:
        self.counts, self.points = Counts(PARAMETERS), list[Point]()
        self.history = History(self.counts, 0, 100.0, ["text"])
        self._fold = Fold(self.counts, before or Totals(), self.points.append, wall=lambda: 7.0)

    def tell(self, event: Event) -> None:
        for watcher in (self.counts.watch, self.history.watch, self._fold.watch):
            watcher(event)


def test_the_history_of_beats_has_the_median_loss_and_those_of_single_nodes() -> None:
    watched = Watched()
    watched.counts.traffic.received.add("parcel", 30)
    watched.counts.traffic.sent.add("parcel", 20)
    watched.tell(beat(0, (3, 4, 6), {"a": 3.0, "b": 2.0}, at=101.0))
    watched.tell(beat(1, (1, 2, 6), {"a": 2.5, "b": 1.5, "new": 4.0}, at=102.0))  # a node that came is behind
    watched.tell(beat(2, (5, 9, 9), {}, at=103.0))  # reports without samples
    first, last = watched.history.series.points(100)
    assert (first.step, first.bytes_up, first.bytes_down, first.nodes, first.at_s) == (4, 30, 20, 3, 2.0)
    assert (first.tokens, first.loss_min, first.loss_max) == (5 * SAMPLES * CONTEXT, 1.5, 4.0)
    assert first.loss == 2.5
    assert (last.step, last.loss, last.tokens) == (9, None, 0)


def test_the_points_of_beats_have_iterations_and_continue_the_totals() -> None:
    watched = Watched(Totals(7, 1000, 5, 6))
    watched.tell(beat(7, (3, 4, 6), {"a": 3.0, "b": 2.0}, at=1.0))
    watched.tell(DisagreementMeasured(32, 2, 0.5, 1.5))
    watched.tell(beat(8, (5, 6, 8), {}, at=3.0))
    first, apart, second = watched.points
    assert (first.series, first.step, first.rows, first.tokens) == (TRAINING, 4, 8, 1000 + 2 * SAMPLES * CONTEXT)
    assert first.values == {
        "loss/training": 2.5, "loss/node/least": 2.0, "loss/node/most": 3.0, "learning_rate": 1e-3, "nodes": 2,
        "tokens": first.tokens, "bytes/up": 5, "bytes/down": 6, "beats": 8, "iterations/least": 3,
        "iterations/most": 6,
    }  # fmt: skip
    expected = {"consensus/distance": 0.5, "consensus/in_steps": 1.5}
    assert (apart.series, apart.step, apart.values) == (CONSENSUS, 32, expected)
    assert "loss/training" not in second.values
    assert (second.step, second.rows, second.values["tokens_per_s"]) == (6, 9, 0)
