"""The share of the time that a volunteer lends."""

from __future__ import annotations

import pytest

from thinwire_node.training.speed import LONGER_MAX, LentTime


def test_the_rest_keeps_computing_to_its_share() -> None:
    lent = LentTime(0.25)
    assert lent.computed(4, 2.0, now=10.0) == pytest.approx(6.0)
    assert lent.rests_until(12.0) == pytest.approx(16.0)
    lent.computed(1, 0.5, now=20.0)  # what was between counts as rest
    assert lent.rests_until(20.0) == pytest.approx(21.5)
    lent.computed(1, 0.5, now=20.5)  # two pieces without a rest between them
    assert lent.rests_until(21.0) == pytest.approx(23.0)


def test_a_clock_that_was_set_back_ends_the_rest() -> None:
    lent = LentTime(0.25)
    lent.computed(4, 2.0, now=1000.0)
    assert lent.rests_until(10.0) == 10.0
    lent.computed(4, 2.0, now=12.0)
    assert lent.rests_until(12.0) == pytest.approx(18.0)


def test_a_process_that_was_stopped_did_not_compute_meanwhile() -> None:
    lent = LentTime(0.5)
    lent.computed(4, 2.0, now=10.0)
    assert lent.computed(2, 3600.0, now=4000.0) == pytest.approx(LONGER_MAX * 2 * 0.5)
    for piece in range(20):
        lent.computed(2, 20.0, now=5000.0 + piece)
    assert lent.computed(2, 20.0, now=6000.0) == pytest.approx(20.0)  # a machine that has become slow is known as such
