"""The final mean has the same bits in any order, as fractions of Python say, and nothing overflows."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import LocalError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.final_mean import (
    FRACTION_BITS,
    NODES_MAX,
    PARAMETER_MAX,
    BoundedMean,
    bounded_mean,
    final_mean,
    in_integers,
)

numbers = st.floats(-PARAMETER_MAX, PARAMETER_MAX, width=32)


@given(
    st.integers(1, 6).flatmap(
        lambda size: st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=1, max_size=5)
    )
)
@settings(max_examples=200, deadline=None)
def test_it_is_what_fractions_say(nodes: list[list[float]]) -> None:
    found = final_mean(in_integers(torch.tensor(x)) for x in nodes)
    for place, value in enumerate(found.tolist()):
        total = sum(round(Fraction(float(np.float32(x[place]))) * 2**FRACTION_BITS) for x in nodes)
        exact = Fraction(total, len(nodes) << FRACTION_BITS)
        assert value == float(np.float32(float(exact)))


def test_the_order_of_the_nodes_does_not_matter() -> None:
    nodes = [in_integers(torch.randn(50, generator=torch.Generator().manual_seed(seed))) for seed in range(4)]
    first = final_mean(nodes)
    for order in permutations(nodes):
        assert torch.equal(final_mean(order), first)


def test_the_largest_sum_is_exact() -> None:
    largest = in_integers(torch.full((3,), PARAMETER_MAX))
    assert final_mean([largest] * NODES_MAX).tolist() == [PARAMETER_MAX] * 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.01 * PARAMETER_MAX, -1.01 * PARAMETER_MAX])
def test_parameters_out_of_bounds_are_refused_at_their_source(bad: float) -> None:
    with pytest.raises(LocalError, match="must lie within"):
        in_integers(torch.tensor([0.0, bad]))


def test_numbers_that_a_node_cannot_have_are_refused() -> None:
    good = in_integers(torch.ones(3))
    for nodes in ([], [good, good * 2**14 + 1], [good, good[:2]], [good.float()], [good] * (NODES_MAX + 1)):
        with pytest.raises(PayloadError):
            final_mean(nodes)


LAYOUT = TileLayout([Parameter(name="m", shape=(40, 70)), Parameter(name="v", shape=(64,))])


def apart(nodes: int) -> list[Tensor]:
    """Parameters of nodes that are as far apart as they move in a few steps."""
    generator = torch.Generator().manual_seed(nodes)
    base = torch.randn(LAYOUT.parameters, generator=generator)
    return [base + 0.01 * torch.randn(LAYOUT.parameters, generator=generator) for _ in range(nodes)]


def bounded(nodes: list[Tensor]) -> BoundedMean:
    return bounded_mean([lambda part, x=x: x[part] for x in nodes], LAYOUT)  # type: ignore[misc]


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 16])
def test_the_bounded_mean_of_honest_nodes_is_their_mean_to_the_bit(nodes: int) -> None:
    found = bounded(apart(nodes))
    assert torch.equal(found.mean, final_mean(map(in_integers, apart(nodes))))
    assert not found.far
    assert not found.clipped


@pytest.mark.parametrize("nodes", [3, 4, 16])
@pytest.mark.parametrize("number", [3.0, -PARAMETER_MAX])
def test_a_node_that_is_far_from_all_others_is_left_out_of_the_mean(nodes: int, number: float) -> None:
    honest = apart(nodes)[1:]
    found = bounded([torch.full((LAYOUT.parameters,), number), *honest])
    assert found.far.keys() == {0}
    assert torch.equal(found.mean, final_mean(map(in_integers, honest)))


@pytest.mark.parametrize(("times", "is_out"), [(10, False), (20, False), (50, True)])
def test_of_three_nodes_two_may_have_just_mixed_while_the_third_was_away(times: float, is_out: bool) -> None:
    first, second, _ = apart(3)
    away = first + times * (second - first).norm() * torch.nn.functional.normalize(torch.ones_like(first), dim=0)
    assert bool(bounded([first, second, away]).far) == is_out


def test_a_node_that_is_far_in_one_block_alone_is_brought_nearer_there() -> None:
    nodes = apart(4)
    nodes[2][-64:] += 0.1
    found = bounded(nodes)
    assert not found.far
    assert found.clipped == {2: 1}
    plain = final_mean(map(in_integers, nodes))
    assert torch.equal(found.mean[:-64], plain[:-64])
    mean = torch.stack([node for place, node in enumerate(nodes) if place != 2]).mean(0)
    assert float((found.mean - mean)[-64:].norm()) < float((plain - mean)[-64:].norm())
