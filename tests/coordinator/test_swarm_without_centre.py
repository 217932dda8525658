"""A swarm without a centre in the simulator. `THINWIRE_MEMBERS=1000` plays it with a thousand nodes."""

from __future__ import annotations

import os

import pytest

from simulator import without_centre

MEMBERS = int(os.environ.get("THINWIRE_MEMBERS", "96"))


@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_are_killed_and_join_and_every_promise_holds(seed: int) -> None:
    world = without_centre.play(MEMBERS, seed)
    assert len(world.reasons) >= 2, world.reasons
    print(without_centre.figures(world))
