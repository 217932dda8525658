"""The time of a message, against a sum of flights and the measured all-reduces of docs/wan.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from thinwire_planner.timing.link import (
    INITIAL_WINDOW_BYTES,
    OVERHEAD,
    SEGMENT_BYTES,
    achieved_bits_s,
    ramp_s,
    transfer_s,
    window_bytes,
)

WAN = Path(__file__).parents[2] / "docs" / "wan.md"
CELL = re.compile(
    r"^\| (?P<mbit>\d+) Mbit/s, (?P<rtt>\d+) ms, (?P<lost>\d)%, 0\.5 core per node "
    r"\| (?P<t>[\d.]+) \| (?P<x>[\d.]+) \|",
    re.MULTILINE,
)
WITHIN = 0.15


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


def mean_delay_s(packets: int, rtt_s: float, rate: float, loss: float) -> float:
    """Packet by packet: each is sent in its turn, and again a round trip later for as long as it is lost."""
    rng = np.random.default_rng(1)
    turns = np.arange(packets) * 8 * SEGMENT_BYTES / rate
    times_lost = rng.geometric(1 - loss, size=(20_000, packets)) - 1
    return float((turns + rtt_s * times_lost).max(1).mean() - turns[-1])
