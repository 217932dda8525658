"""Ranks in several process groups, ranks that come late or not at all, and averages after that; on four real ranks."""

from __future__ import annotations

from typing import Any

import pytest

from support.gossip_groups import ABSENCE_S, DEAD, LATE
from support.gossip_ranks import RANKS, run_scenes

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("groups"), "support.gossip_groups")


def test_a_group_does_not_take_the_decision_of_another(ranks: Found) -> None:
    assert [found["apart"] for found in ranks] == [[0, 1], [0, 1], [0], None]


def test_ranks_that_have_made_different_numbers_of_groups_meet(ranks: Found) -> None:
    assert [found["unequal_groups"] for found in ranks] == [list(range(RANKS))] * RANKS


def test_nobody_waits_longer_than_the_patience_for_a_rank_that_makes_no_gossip(ranks: Found) -> None:
    for rank, found in enumerate(ranks):
        error, present = found["absent"]
        said = f"rank {DEAD} did not come within {ABSENCE_S:g} s; all ranks create Gossip together"
        assert rank == DEAD or said in error
        assert present == list(range(RANKS))


def test_the_store_does_not_grow_with_the_averages(ranks: Found) -> None:
    for found in ranks:
        first, last = found["growing"]
        assert first == last


def test_averaging_goes_on_after_a_rank_was_late_and_another_died(ranks: Found) -> None:
    for rank, found in enumerate(ranks):
        if rank == DEAD:
            continue
        present, mean = found["late_then_dead"]
        for one in present[:2]:
            assert "have averaged without this one" in one if rank == LATE else one == [0, 2, DEAD]
        assert present[2:] == [list(range(RANKS)), [0, 1, 2]]
        assert mean == 1.0
