"""Who gives its place away in a full swarm, and to whom."""

from __future__ import annotations

import random

import pytest

from thinwire_coordinator.hall.members import IDLE_ROUNDS, Candidate, decide
from thinwire_proto.limits import PLACE_KEPT_S

NEWCOMER, COUNTED = Candidate("comes", "net 1"), Candidate("comes", "net 1", has_counted=True)
LONG = PLACE_KEPT_S


def place(
    node: str, group: str = "net 2", rounds: int = 5, seconds: float = LONG, *, has_counted: bool = False
) -> Candidate:
    return Candidate(node, group, has_counted, rounds, seconds)


BUSY = [place("a", has_counted=True, rounds=0), place("b", has_counted=True, rounds=3)]
CROWD = [place("x", rounds=2), place("y", rounds=9), place("z", rounds=1)]


@pytest.mark.parametrize(
    ("comes", "held", "gives", "why"),
    [
        (NEWCOMER, BUSY, None, ""),
        (COUNTED, BUSY, None, ""),  # all of them contribute
        (COUNTED, [*BUSY, *CROWD], "y", "has come back"),
        (COUNTED, [*BUSY, place("slow", rounds=IDLE_ROUNDS, has_counted=True)], "slow", "64 rounds"),
        (NEWCOMER, [*BUSY, place("slow", rounds=IDLE_ROUNDS, has_counted=True)], "slow", "64 rounds"),
        (NEWCOMER, [*BUSY, place("slow", rounds=IDLE_ROUNDS - 1, has_counted=True)], None, ""),
        # short rounds: it may still fetch the model
        (NEWCOMER, [*BUSY, place("fetches", "net 1", IDLE_ROUNDS, LONG - 1)], None, ""),
        (NEWCOMER, [*BUSY, place("old", "net 1", 70), place("older", "net 1", 80)], "older", "80 rounds"),
        (NEWCOMER, [*BUSY, *CROWD], "y", "net"),
        (Candidate("comes", "net 2"), [*BUSY, *CROWD], None, ""),  # of the network that holds them
        (NEWCOMER, [*BUSY, place("x"), place("own", "net 1")], None, ""),  # already even
        (NEWCOMER, [*BUSY, place("x"), place("y"), place("own", "net 1")], None, ""),  # it would change for ever
        (Candidate("comes"), [*BUSY, *CROWD], None, ""),  # no address
        (NEWCOMER, [place("x", ""), place("y", "")], None, ""),
    ],
)
def test_whose_place_a_node_takes(comes: Candidate, held: list[Candidate], gives: str | None, why: str) -> None:
    for seed in range(3):
        given = decide(comes, random.Random(seed).sample(held, len(held)))
        assert (given.node if given else None) == gives
        assert why in (given.reason if given else "")


def test_networks_that_join_in_turns_share_the_places_and_then_nothing_changes_any_more() -> None:
    held = [place(f"crowd {number}") for number in range(12)]
    coming = [Candidate(f"{network} {number}", network) for number in range(12) for network in ("net 1", "net 3")]
    moves = 0
    while moved := [one for one in coming if decide(one, held)]:
        given = decide(moved[0], held)
        assert given is not None
        (gone,) = [one for one in held if one.node == given.node]
        held, coming = [*(one for one in held if one != gone), moved[0]], [*coming, gone]
        coming.remove(moved[0])
        moves += 1
        assert moves < 100
    by_network = [sum(one.group == f"net {number}" for one in held) for number in (1, 2, 3)]
    assert by_network == [4, 4, 4]
