"""A rank that dies or hangs, beside ranks that gossip: nobody waits for it longer than the patience."""

from __future__ import annotations

from typing import Any

import pytest

from support.gossip_deaths import HUNG, KILLED
from support.gossip_problem import equal
from support.gossip_ranks import RANKS, run_scenes

Found = list[dict[str, Any]]
LIVING = [rank for rank in range(RANKS) if rank != KILLED]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("deaths"), "support.gossip_deaths")


def test_after_a_kill_the_others_train_on_without_the_dead_ones_edges(ranks: Found) -> None:
    assert "killed" not in ranks[KILLED]
    for rank in LIVING:
        found = ranks[rank]["killed"]
        assert found["learned"]
        assert found["stats"]["steps"] == 70
        peers = {0: [KILLED], 1: [], 3: [KILLED]}[rank]  # at distance 1 and 2
        assert list(found["stats"]["left_out"]) == peers
        for told in ("and its edges are left out", "so no run can load this state"):
            assert len([text for text in found["warnings"] if f"rank {KILLED} is gone, {told}" in text]) == len(peers)
        assert found["saved"] == 60


def test_the_living_average_among_themselves(ranks: Found) -> None:
    for rank in LIVING:
        assert ranks[rank]["killed"]["present"] == LIVING
        assert equal(ranks[rank]["killed"]["averaged"], ranks[0]["killed"]["averaged"])


@pytest.mark.parametrize(("scene", "rounding"), [("hanging", 1e-12), ("hanging_int8", 1e-5)])
def test_a_rank_that_hangs_is_left_out_and_comes_back(ranks: Found, scene: str, rounding: float) -> None:
    """Its bias, and those of the others, moved apart once before it hung and once after. The mean shows that no end of
    an edge has mixed what the other has not."""
    biases = [found[scene][0] for found in ranks]
    assert sum(biases) / RANKS == pytest.approx(3.0, abs=rounding)
    for rank, found in enumerate(ranks):
        _, left_out, warnings, _ = found[scene]
        assert left_out == (rank != HUNG)
        assert any(f"rank {HUNG} is left out until it is heard of again" in text for text in warnings) == left_out


def test_over_one_way_edges_a_rank_that_hangs_loses_no_mass(ranks: Found) -> None:
    for rank, found in enumerate(ranks):
        bias, left_out, _, _ = found["hanging_one_way"]
        assert bias == pytest.approx(1.5, abs=1e-5)
        assert left_out == (rank != HUNG)


def test_over_one_way_edges_a_target_that_hangs_delays_no_message_to_others(ranks: Found) -> None:
    """Nobody waits for rank 3, so nobody leaves out anybody."""
    living = [found["hanging_target"] for rank, found in enumerate(ranks) if rank != HUNG]
    assert living == [[], [], []]


@pytest.mark.parametrize("scene", ["hanging", "hanging_int8", "hanging_one_way"])
def test_a_save_without_a_rank_that_hangs_is_refused_on_all_others_and_the_next_is_whole(
    ranks: Found, scene: str
) -> None:
    for rank, found in enumerate(ranks):
        first, second = found[scene][3]
        named, colon, _ = first.removeprefix("rank ").partition(": not saved with the others within 0.5 s")
        assert rank == HUNG or (colon and named.split(", ")[-1] == str(HUNG))
        assert second == ""
