"""Ranks in several process groups, on four real ranks."""

from __future__ import annotations

from typing import Any

import pytest

from support.gossip_ranks import run_scenes

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("groups"), "support.gossip_groups")


def test_a_group_does_not_take_the_decision_of_another(ranks: Found) -> None:
    assert [found["apart"] for found in ranks] == [[0, 1], [0, 1], [0], None]
