"""Messages of an iteration go out once those of the iterations before have arrived."""

from __future__ import annotations

import math

import torch

from thinwire.gossip.lines import Head, Kind, Outgoing, SendOrder

HELD_S = 10.0


def everybody(_: int) -> bool:
    return True


def order_of(*messages: tuple[int, int]) -> SendOrder:
    """messages: iteration and peer."""
    order = SendOrder(HELD_S)
    for iteration, peer in messages:
        order.add(Outgoing(peer, Head(Kind.MESSAGE, iteration), lambda: torch.zeros(0), lambda: None))
    return order


def sent(found: object) -> list[tuple[int, int]]:
    return [(one.head.iteration, one.peer) for one in found]  # type: ignore[attr-defined]


def test_messages_of_one_iteration_go_out_together() -> None:
    assert sent(order_of((0, 1), (0, 2)).due(everybody, 0.0)) == [(0, 1), (0, 2)]


def test_a_newer_iteration_waits_for_all_messages_of_the_older() -> None:
    order = order_of((0, 1), (0, 2), (1, 1), (2, 3))
    sent(order.due(everybody, 0.0))
    order.arrived(0, 2)
    assert sent(order.due(everybody, 0.0)) == []
    order.arrived(0, 1)
    assert sent(order.due(everybody, 0.0)) == [(1, 1)]
    order.arrived(1, 1)
    assert sent(order.due(everybody, 0.0)) == [(2, 3)]


def test_nobody_waits_for_a_peer_that_does_not_read() -> None:
    order = order_of((0, 1), (0, 2), (1, 2))
    sent(order.due(everybody, 0.0))
    order.arrived(0, 2)
    assert sent(order.due(lambda peer: peer != 1, 0.0)) == [(1, 2)]


def test_all_go_out_before_something_else_does() -> None:
    order = order_of((0, 1), (1, 2), (2, 1))
    assert sent(order.all(0.0)) == [(0, 1), (1, 2), (2, 1)]
    assert sent(order.due(everybody, 0.0)) == []


def test_a_message_holds_up_newer_ones_for_a_bounded_time() -> None:
    """A rank that hangs, and to which this one only sends, does not say so."""
    order = order_of((0, 1), (1, 2), (2, 2))
    assert order.held_until(everybody) == -math.inf
    assert sent(order.due(everybody, 3.0)) == [(0, 1)]
    assert order.held_until(everybody) == 3.0 + HELD_S
    assert sent(order.due(everybody, 2.9 + HELD_S)) == []
    assert sent(order.due(everybody, 3.0 + HELD_S)) == [(1, 2)]
    assert order.held_until(everybody) == 3.0 + 2 * HELD_S  # now for the message that was held up
    order.arrived(1, 2)
    assert sent(order.due(everybody, 3.0 + HELD_S)) == [(2, 2)]
    assert order.held_until(everybody) == math.inf
