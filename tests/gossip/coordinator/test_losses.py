"""Losses that nodes report: their median, and what of a beat's reports is shown."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from thinwire_coordinator.gossip.sealed_beats import loss_of, progress_of
from thinwire_coordinator.hall.measurement import is_plausible, weighted_median
from thinwire_proto.gossip.reports import Report, SignedReport


@pytest.mark.parametrize(
    ("weighed", "median"),
    [
        ([(2.0, 8)], 2.0),
        ([(2.0, 8), (3.0, 8)], 2.5),  # two equal nodes: their mean
        ([(2.0, 8), (3.0, 7)], 2.0),
        ([(2.0, 8), (3.0, 8), (900.0, 8)], 3.0),
        ([(2.0, 8), (2.2, 8), (2.4, 8), (1e6, 8)], 2.3),
        ([(0.0, 1), (0.0, 1), (0.0, 1), (2.0, 8), (2.2, 8)], 2.0),  # three newcomers move it by one place
        ([(1e6, 0), (2.0, 8)], 2.0),
        ([(1.0, 1), (math.inf, 1)], math.inf),
    ],
)
def test_the_weighted_median(weighed: list[tuple[float, float]], median: float) -> None:
    for seed in range(3):
        assert weighted_median(random.Random(seed).sample(weighed, len(weighed))) == pytest.approx(median)


def test_with_equal_weights_it_is_the_median_and_without_values_no_number() -> None:
    rng = random.Random(1)
    for count in range(1, 30):
        values = [rng.random() for _ in range(count)]
        assert weighted_median((value, 3) for value in values) == pytest.approx(statistics.median(values))
    assert math.isnan(weighted_median([]))


def reports(losses: dict[str, list[float]]) -> list[SignedReport]:
    made = [(node, loss) for node, own in losses.items() for loss in own]
    return [SignedReport(node, b"", 1, Report(1, 5, b"", loss=loss), b"") for node, loss in made]


@pytest.mark.parametrize("lie", [math.nan, math.inf, 3e38, -3e38, 1e6, 0.0])
def test_no_report_moves_the_loss_of_a_beat_or_shows_what_is_no_loss(lie: float) -> None:
    told = reports({"a": [2.0, 3.0], "liar": [lie] * 8, "b": [2.2], "c": [2.4]})
    samples = [4, 12, *[1 << 20] * 8, 4, 4]  # nobody can check how many samples it has trained on
    assert 2.2 <= loss_of(told, samples) <= 2.75
    shown = progress_of(told, samples)
    assert shown["a"].loss == pytest.approx(2.75)
    assert {one.iteration for one in shown.values()} == {5}
    assert shown["liar"].loss is None or is_plausible(shown["liar"].loss)
    assert math.isnan(loss_of(told, [0] * len(told)))
