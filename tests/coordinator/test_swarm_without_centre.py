"""A gossip run in the simulator. `THINWIRE_MEMBERS=1000` plays one with a thousand nodes."""

from __future__ import annotations

import os

import pytest

from simulator import pauses, without_centre
from simulator.pauses import Kind

MEMBERS = int(os.environ.get("THINWIRE_MEMBERS", "96"))


def test_nodes_are_killed_and_join_and_every_promise_holds() -> None:
    world = without_centre.play(MEMBERS, 1)
    assert len(world.reasons) >= 2, world.reasons
    print(without_centre.figures(world))


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (18, Kind(restarts=True)),
        (15, Kind(restarts=True, lost=0.03)),
        (9, Kind(restarts=True, slack=2)),
        (20, Kind(restarts=True, topology="ring", lost=0.02)),
    ],
)
def test_living_nodes_that_are_left_out_and_come_back_keep_the_mean(seed: int, kind: Kind) -> None:
    assert pauses.play(seed, kind).topologies > 2
