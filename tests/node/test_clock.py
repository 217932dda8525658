"""A node's estimate of the coordinator's clock is never more wrong than its error bound."""

from __future__ import annotations

import random

import pytest

from thinwire_node.exchange.coordinator.clock import CoordinatorClock, Probe


def probe(offset: float, there_s: float, back_s: float, sent: float = 100.0, busy_s: float = 0.001) -> Probe:
    """A probe of a coordinator whose clock is `offset` ahead."""
    received = sent + there_s
    answered = received + busy_s
    return Probe(sent, received + offset, answered + offset, answered + back_s)


@pytest.mark.parametrize(("there_s", "back_s"), [(0.01, 0.01), (0.2, 0.0), (0.0, 0.2), (0.05, 0.15)])
def test_the_error_bound_holds_however_the_delay_is_shared(there_s: float, back_s: float) -> None:
    found = probe(5.0, there_s, back_s)
    assert abs(found.offset - 5.0) <= found.error + 1e-12
    assert found.error == pytest.approx((there_s + back_s) / 2)


def test_the_best_of_the_last_probes_is_used() -> None:
    clock = CoordinatorClock()
    assert not clock
    for delay_s in (0.2, 0.01, 0.3):
        assert clock.add(probe(5.0, delay_s, 0.0), 1) is None
    assert clock
    assert clock.error(100.1) == pytest.approx(0.005, abs=1e-4)
    assert 110.0 - clock.offset(100.1) == pytest.approx(105.0, abs=0.006)


@pytest.mark.parametrize("jump", [-7200.0, -0.5, 0.5, 7200.0])
def test_a_clock_jump_is_detected_and_discards_the_old_probes(jump: float) -> None:
    clock = CoordinatorClock()
    clock.add(probe(5.0, 0.01, 0.01), 1)
    odd = clock.add(probe(5.0 + jump, 0.02, 0.02, sent=101.0), 1)
    assert odd is not None
    assert "have moved apart by" in odd
    assert clock.offset(101.1) == pytest.approx(5.0 + jump, abs=0.03)


def test_the_true_offset_stays_within_the_error_bound_under_drift() -> None:
    rng = random.Random(1)
    for ppm in (-190, 0, 190):
        clock, now = CoordinatorClock(), 0.0
        for _ in range(300):
            now += rng.uniform(0.5, 20)
            offset = 3.0 + now * ppm * 1e-6
            delays = rng.uniform(0, 0.2), rng.uniform(0, 0.2)
            assert clock.add(probe(offset, *delays, sent=now), 1) is None
            later = now + rng.uniform(0.5, 30)
            assert abs(clock.offset(later) - (3.0 + later * ppm * 1e-6)) <= clock.error(later) + 1e-4
