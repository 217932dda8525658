"""A node that passes turns which its peers have begun says so, and nobody waits for them."""

from __future__ import annotations

import pytest

from support.members import FIRST, FOURTH, SECOND, THIRD, begun, begun_to, member, sent_by, turns
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.message import SKIP, SNAPSHOT


def unsettled() -> Member:
    """A node whose edge with peer 1 has ended with open turns, and begins anew with the third topology, from iteration
    4 on. Peer 2 has one all the time."""
    node = member()
    node.assign(turns(FIRST, 0, 0, [1]))
    begun_to(node, 2)
    node.assign(turns(SECOND, 3, 0, [2], since={2: SECOND}))
    node.assign(turns(THIRD, 4, 0, [1, 2], since={1: THIRD, 2: SECOND}))
    return node


def settle(node: Member) -> None:
    """The peer has done with the older edge, and has begun the newer one."""
    peer = member()
    peer.assign(turns(THIRD, 4, 1, [0]))
    node.received(1, begun(peer)[0])


def test_a_newcomer_was_too_late_for_the_first_iterations_of_its_topology() -> None:
    """It holds from iteration 4 on, and the first peer that the newcomer hears is in iteration 6 already."""
    newcomer, peer = member(), member()
    newcomer.assign(turns(SECOND, 4, 2, [0, 1], adopts=True))
    peer.assign(turns(SECOND, 6, 0, [2]))
    newcomer.received(0, begun(peer)[2])
    assert sent_by(newcomer) == [(0, (SECOND, 6), SNAPSHOT), (1, (SECOND, 5), SKIP)]


def test_a_node_hears_late_of_a_topology() -> None:
    node = member()
    node.assign(turns(FIRST, 0, 0, [1]))
    begun_to(node, 2)
    node.assign(turns(SECOND, 2, 0, [2, 1], since={1: FIRST, 2: SECOND}))
    assert sent_by(node) == [(1, (SECOND, 3), "dense"), (2, (SECOND, 2), SKIP)]


def test_a_node_hears_in_time_of_a_topology() -> None:
    node = member()
    node.assign(turns(FIRST, 0, 0, [1]))
    begun_to(node, 2)
    node.assign(turns(SECOND, 3, 0, [2, 1], since={1: FIRST, 2: SECOND}))
    assert sent_by(node) == [(1, (SECOND, 3), "dense")]


def test_a_node_tells_older_peers_at_once_since_they_may_hear_late() -> None:
    """Such a peer may have begun a turn of the first topology, for which this node never sends."""
    node = member()
    node.assign(turns(FIRST, 0, 0, [1]))
    begun_to(node, 2)
    node.assign(turns(SECOND, 3, 0, [1, 2], since={1: FIRST, 2: SECOND}))
    assert sent_by(node) == [(1, (SECOND, 2), SKIP), (2, (SECOND, 3), SNAPSHOT)]


def test_a_peer_that_hears_late_does_not_wait_for_a_turn_of_the_older_topology() -> None:
    node, late = member(), member()
    for number, each in enumerate((node, late)):
        each.assign(turns(FIRST, 0, number, [None, None, None, 1 - number]))
    begun_to(node, 2)
    begun_to(late, 3)
    node.assign(turns(SECOND, 3, 0, [1, None], since={1: FIRST}))
    late.received(0, begun(node)[1])
    assert late.computed(0.0) is None
    assert late.assign(turns(SECOND, 3, 1, [0, None], since={0: FIRST})) is not None


def test_a_node_has_missed_a_whole_topology() -> None:
    """It begins the third in time, and its peers may have begun turns of the second before."""
    node = member()
    node.assign(turns(FIRST, 0, 0, [1, 2]))
    begun_to(node, 3)
    node.assign(turns(THIRD, 4, 0, [1, 2], since={1: FIRST, 2: FIRST}))
    assert sent_by(node) == [(1, (THIRD, 4), "dense"), (2, (THIRD, 3), SKIP)]


@pytest.mark.parametrize("start", [7, 8, 9])
def test_a_node_skips_to_the_iteration_of_a_peer_that_waits_no_longer(start: int) -> None:
    """Also if that is the first iteration of a topology."""
    node, ahead = member(), member()
    for topology, first in ((FIRST, 0), (SECOND, start)):
        node.assign(turns(topology, first, 0, [1, 2], since={1: FIRST, 2: FIRST}))
        ahead.assign(turns(topology, first, 1, [0, 3], since={0: FIRST, 3: FIRST}))
    begun_to(node, 2)
    for _ in range(9):
        if message := begun(ahead).get(0):
            node.received(1, message)
    holds = SECOND if start <= 8 else FIRST
    assert sent_by(node) == [(1, (holds, 8), "dense"), (2, (holds, 7), SKIP)]


def test_an_edge_begins_anew_after_its_topology_because_the_older_one_was_not_settled() -> None:
    node = unsettled()
    begun_to(node, 4)
    settle(node)
    assert (1, (THIRD, 4), SKIP) in sent_by(node)


def test_an_edge_begins_anew_in_the_first_iteration_of_a_later_topology() -> None:
    node = unsettled()
    begun_to(node, 6)
    node.assign(turns(FOURTH, 7, 0, [1, 2], since={1: THIRD, 2: SECOND}))
    settle(node)
    assert (1, (FOURTH, 6), SKIP) in sent_by(node)
