"""The sketch's distance is right within its error, and the controller holds the disagreement below its target."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thinwire_proto.exact.mix64 import GOLDEN, mix64
from thinwire_proto.gossip.consensus import BUCKETS, CALM, ERROR, LEVELS, Decision, decide, disagreement, sketch_of


def test_a_sketch_is_that_of_a_plain_reference() -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    expected = np.zeros(BUCKETS)
    for position, value in enumerate(x.tolist()):
        mixed = mix64(position * GOLDEN ^ mix64(7))
        expected[mixed >> 54] += value if mixed % 2 == 0 else -value
    np.testing.assert_allclose(sketch_of(x, 7), expected, rtol=1e-12, atol=1e-12)


def test_the_estimated_distance_is_within_its_error() -> None:
    """Two standard errors: about one estimate in twenty lies outside."""
    generator = torch.Generator().manual_seed(3)
    outside = 0
    for seed in range(60):
        nodes = [torch.randn(20_000, generator=generator) * torch.rand(20_000, generator=generator) for _ in range(4)]
        mean = torch.stack(nodes).double().mean(0)
        exact = math.sqrt(sum(float(((x.double() - mean) ** 2).sum()) for x in nodes) / len(nodes))
        found = disagreement([sketch_of(x, seed) for x in nodes])
        outside += abs(found.distance / exact - 1) > found.error
        assert abs(found.distance / exact - 1) < 2 * found.error
    assert outside <= 8


def test_equal_nodes_do_not_disagree() -> None:
    sketch = sketch_of(torch.randn(5000), 1)
    assert disagreement([sketch, sketch.copy()]).distance == 0
    assert disagreement([sketch, sketch.copy()]).in_steps(0.0) == 0
    assert disagreement([sketch, 2 * sketch]).in_steps(0.0) == math.inf


def test_it_sends_more_at_once_and_less_after_a_while() -> None:
    found = decide(Decision(0, 0, ""), 5.0, 2.0)
    assert found.level == 1
    assert "more bytes" in found.reason
    for calm in range(1, CALM):
        found = decide(found, 0.5, 2.0)
        assert (found.level, found.calm) == (1, calm)
    found = decide(found, 0.5, 2.0)
    assert (found.level, found.calm) == (0, 0)
    assert "fewer bytes" in found.reason
    assert decide(found, 0.5, 2.0).level == 0
    assert decide(Decision(3, CALM - 1, ""), 1.5, 2.0).calm == 0
    assert decide(Decision(3, 0, ""), 2.0 * (1 + ERROR / 2), 2.0).level == 3  # within the error of the measurement


@pytest.mark.parametrize("ratio", [math.inf, math.nan, 1e9])
def test_what_is_no_measurement_sends_more_up_to_the_end(ratio: float) -> None:
    found = Decision(0, 0, "")
    for _ in range(20):
        found = decide(found, ratio, 1.0)
    assert found.level == len(LEVELS) - 1
    assert "no codec sends more" in found.reason


def test_it_settles_where_the_disagreement_is_below_the_target() -> None:
    """A swarm whose disagreement halves from level to level."""
    found, ratios = Decision(0, 0, ""), []
    for _ in range(100):
        ratios.append(12.8 / 2**found.level)
        found = decide(found, ratios[-1], 2.0)
    assert max(ratios[20:]) <= 2.0 * (1 + ERROR)
    assert found.level == 3
