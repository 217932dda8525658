"""A node that cannot catch up with the swarm stops; a node that is merely slow continues."""

from __future__ import annotations

from thinwire_node.exchange.coordinator.keeping_up import KeepingUp
from thinwire_proto.limits import KEEPING_UP_S


def catch_up(fetch_s: float, replay_s: float, round_s: float, behind: int) -> tuple[str | None, int]:
    """Simulate a catch-up. Returns the error message or None, and the number of updates applied."""
    now, step, head = 0.0, 0, float(behind)
    keeping_up = KeepingUp(0, behind, now)
    while step < int(head):
        now += fetch_s + replay_s
        head = behind + now / round_s
        step += 1
        words = keeping_up.applied(40_000, fetch_s, replay_s, step, int(head), now)
        if words:
            return words, step
    return None, step


def test_a_link_that_is_too_slow_gets_an_error_with_figures() -> None:
    words, steps = catch_up(fetch_s=3.0, replay_s=0.5, round_s=2.0, behind=500)
    assert words is not None
    assert "an update takes 3.00 s to fetch (40,000 bytes, 13.3 kB/s) and 0.50 s to replay" in words
    assert "It needs a faster link" in words
    assert steps * 3.5 < KEEPING_UP_S + 3.5


def test_a_machine_that_is_too_slow_gets_an_error() -> None:
    words, _ = catch_up(fetch_s=0.1, replay_s=3.0, round_s=2.0, behind=500)
    assert words is not None
    assert "It needs a faster machine" in words


def test_a_node_that_gains_slowly_catches_up() -> None:
    words, steps = catch_up(fetch_s=1.5, replay_s=0.4, round_s=2.0, behind=50)
    assert words is None
    assert steps > 500


def test_a_node_catches_up_with_a_swarm_that_seals_nothing() -> None:
    assert catch_up(fetch_s=100.0, replay_s=1.0, round_s=float("inf"), behind=5) == (None, 5)
