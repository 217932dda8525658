"""A node that cannot catch up with the swarm stops; a node that is merely slow continues."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import pytest

from thinwire_node.star.keeping_up import BAD_WINDOWS, KeepingUp
from thinwire_proto.limits import KEEPING_UP_S

HICCUP_S = 12.0
"""Longer than a window, and shorter than the time after which gRPC gives a connection up."""


def catch_up(
    fetch_s: float,
    replay_s: float,
    round_s: float,
    behind: int,
    *,
    hiccups: Container[int] = (),
    saves_s: Mapping[int, float] | None = None,
) -> tuple[str | None, int]:
    """Simulate a catch-up. Returns the error message or None, and the number of updates applied.

    hiccups: steps before whose update the line is silent. saves_s: how long the node saves after these steps."""
    now, step, head = 0.0, 0, float(behind)
    keeping_up = KeepingUp(0, behind, now)
    while step < int(head):
        step += 1
        fetched_s, saved_s = fetch_s + HICCUP_S * (step in hiccups), (saves_s or {}).get(step, 0.0)
        now += fetched_s + replay_s + saved_s
        head = behind + now / round_s
        words = keeping_up.applied(40_000, fetched_s, replay_s, saved_s, step, int(head), now)
        if words:
            return words, step
    return None, step


def test_a_link_that_is_too_slow_gets_an_error_with_figures_soon() -> None:
    words, steps = catch_up(fetch_s=3.0, replay_s=0.5, round_s=2.0, behind=500)
    assert words is not None
    assert "an update takes 3.00 s to fetch (40,000 bytes, 13.3 kB/s) and 0.50 s to replay" in words
    assert steps * 3.5 < BAD_WINDOWS * (KEEPING_UP_S + 3.5)


SAVES = {start: dict.fromkeys(range(100 - start, 600, 100), 60.0) for start in (0, 45, 99)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"fetch_s": 3.0, "replay_s": 0.5, "round_s": 2.0, "behind": 500}, "It needs a faster link"),
        ({"fetch_s": 0.1, "replay_s": 3.0, "round_s": 2.0, "behind": 500}, "It needs a faster machine"),
        ({"fetch_s": 1.5, "replay_s": 0.4, "round_s": 2.0, "behind": 50}, None),  # it gains slowly
        *(({"hiccups": {at}}, None) for at in (250, 299, 348)),
        ({"hiccups": range(0, 1000, 5)}, ""),
        *(
            ({"fetch_s": 0.3, "replay_s": 1.2, "round_s": 10.0, "behind": 400, "saves_s": s}, None)
            for s in SAVES.values()
        ),
    ],
)
def test_a_node_stops_only_if_it_falls_behind_for_good(line: dict[str, Any], said: str | None) -> None:
    given: dict[str, Any] = {"fetch_s": 0.2, "replay_s": 0.01, "round_s": 1.0, "behind": 1000} | line
    words, _ = catch_up(**given)
    assert words is None if said is None else said in str(words) and words is not None
