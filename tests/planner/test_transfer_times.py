"""Times of computing against an enumeration of all draws, and of a message against a sum of flights."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.link import (
    INITIAL_WINDOW_BYTES,
    OVERHEAD,
    SEGMENT_BYTES,
    achieved_bits_s,
    ramp_s,
    recovery_s,
    transfer_s,
    window_bytes,
)
from thinwire_proto.errors import ConfigError


def seconds_round_by_round(size: float, rtt_s: float, rate: float, window: float) -> float:
    """Slow start, one flight after the other: a flight ends when it was acknowledged, or when it was sent."""
    seconds = 0.0
    while size > window:
        seconds += max(rtt_s, 8 * window / rate)
        size -= window
        window *= 2
    return seconds + 8 * size / rate


@pytest.mark.parametrize("size", [1_000, 20_000, 64 * 1024, 1024 * 1024, 50_000_000])
@pytest.mark.parametrize(("rtt_s", "rate"), [(0.1, 1e8), (0.1, 1e7), (0.02, 1e9), (1e-4, 1e10)])
def test_the_ramp_is_that_of_flights_which_double(size: float, rtt_s: float, rate: float) -> None:
    whole = 8 * size / rate + float(ramp_s(size, rtt_s, rate, INITIAL_WINDOW_BYTES))
    assert whole == pytest.approx(seconds_round_by_round(size, rtt_s, rate, INITIAL_WINDOW_BYTES), rel=1e-9)


def test_a_message_on_a_busy_line_takes_half_a_round_trip_and_its_bits() -> None:
    assert float(transfer_s(1_000_000, 0.1, 1e8)) == pytest.approx(0.05 + 8e6 * (1 + OVERHEAD) / 1e8)


def test_idleness_halves_the_window_down_to_the_initial_one() -> None:
    size, rtt_s, rate = 1_000_000, 0.1, 1e8
    windows = [float(window_bytes(size, rtt_s, rate, idle_s)) for idle_s in (0.0, 0.31, 0.61, 60.0)]
    assert windows == [1e6, 5e5, 2.5e5, INITIAL_WINDOW_BYTES]


def test_arrays_give_what_single_messages_give() -> None:
    sizes, rates = np.asarray([1e4, 1e6]), np.asarray([1e7, 1e8])
    both = transfer_s(sizes, 0.05, rates, loss=0.01, idle_s=1.0)
    for size, rate, seconds in zip(sizes, rates, both, strict=True):
        assert seconds == float(transfer_s(size, 0.05, rate, loss=0.01, idle_s=1.0))


def test_loss_bounds_the_rate_of_reno_and_less_so_that_of_cubic() -> None:
    reno = float(achieved_bits_s(1e9, 0.1, 1e-4, "reno"))
    assert reno == pytest.approx(8 * SEGMENT_BYTES * (1.5 / 1e-4) ** 0.5 / 0.1)
    assert reno < float(achieved_bits_s(1e9, 0.1, 1e-4, "cubic")) < float(achieved_bits_s(1e9, 0.1, 1e-4, "bbr"))
    assert float(achieved_bits_s(1e9, 0.1, 0.0, "reno")) == 1e9


@pytest.mark.parametrize(("segments", "loss"), [(40, 0.02), (400, 0.02), (400, 0.002)])
def test_lost_packets_delay_a_message_as_in_a_simulation(segments: int, loss: float) -> None:
    """Each packet is lost by chance, and is sent again a round trip later."""
    rtt_s, rate = 0.1, 12e6
    packet_s = 8 * SEGMENT_BYTES / rate
    sent = packet_s * np.arange(1, segments + 1)
    tries = np.random.default_rng(1).geometric(1 - loss, (20_000, segments))
    delays = (sent + rtt_s * (tries - 1)).max(1) - sent[-1]
    assert float(recovery_s(segments * SEGMENT_BYTES, rtt_s, rate, loss)) == pytest.approx(delays.mean(), rel=0.1)
    assert float(recovery_s(segments * SEGMENT_BYTES, rtt_s, rate, 0.0)) == 0


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
