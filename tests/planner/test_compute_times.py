"""The distribution of compute times against an enumeration of all draws."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from thinwire_planner.timing.compute import ComputeTimes
from thinwire_proto.errors import ConfigError

SAMPLES = (0.9, 1.0, 1.0, 1.7)


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 1.0, 1.0), (1.0, 2.0, 0.5), (1.1, 1.1, 3.0)])
def test_the_mean_of_the_slowest_is_that_of_all_draws(speeds: tuple[float, ...]) -> None:
    draws = product(*([sample / speed for sample in SAMPLES] for speed in speeds))
    expected = np.mean([max(draw) for draw in draws])
    assert ComputeTimes(SAMPLES).slowest_s(speeds) == pytest.approx(expected)


@pytest.mark.parametrize("variation", [0.0, 0.05, 0.3, 1.0, 2.0, 10.0])
def test_times_from_mean_and_variation_have_them(variation: float) -> None:
    times = ComputeTimes.around(0.42, variation)
    assert times.mean_s == pytest.approx(0.42, rel=1e-6)
    assert times.variation == pytest.approx(variation, rel=0.02, abs=1e-12)


def test_draws_come_from_the_samples_and_repeat() -> None:
    times = ComputeTimes(SAMPLES)
    drawn = times.draw(5, 50, (1.0, 2.0))
    assert set(drawn[:, 0]) <= set(SAMPLES)
    assert set(drawn[:, 1] * 2) <= set(SAMPLES)
    np.testing.assert_array_equal(drawn, times.draw(5, 50, (1.0, 2.0)))


def test_no_times_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one time"):
        ComputeTimes(())
