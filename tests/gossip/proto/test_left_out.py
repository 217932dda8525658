"""A node that a topology has left out, and the newest has again: it adopts if it is far behind, and nobody waits."""

from __future__ import annotations

from dataclasses import replace

import torch

from support.members import FIRST, FOURTH, SECOND, THIRD, begun, begun_to, member, mixed, turns
from thinwire_proto.gossip.iteration import AHEAD_MAX
from thinwire_proto.gossip.message import SKIP


def test_one_that_is_far_behind_adopts_and_waits_for_no_older_peer() -> None:
    """Its only peer of the newest topology is a new one, and the older peer has forgotten it."""
    node, peer = member(), member()
    node.assign(turns(FIRST, 0, 0, [2]))
    begun_to(node, 9)
    node.assign(turns(THIRD, 100, 0, [1], adopts=True))
    peer.assign(turns(THIRD, 100, 1, [0]))
    peer.x.fill_(7.0)
    assert node.computed(0.0) is None
    mix = node.received(1, begun(peer)[0])
    assert mix is not None
    assert torch.equal(node.x, peer.x)
    assert list(begun(node)) == [1]
    assert node.iteration == 100


def test_one_that_is_little_behind_goes_on_by_itself() -> None:
    node, peer = member(), member()
    node.assign(turns(FIRST, 0, 0, [1]))
    begun_to(node, 9)
    node.assign(turns(THIRD, 9 + AHEAD_MAX, 0, [1], adopts=True))
    peer.assign(turns(THIRD, 9 + AHEAD_MAX, 1, [0]))
    peer.x.fill_(7.0)
    node.received(1, begun(peer)[0])
    assert not torch.equal(node.x, peer.x)
    begun(node)
    assert node.iteration == 10


def test_adopting_keeps_the_edges_of_the_newest_topology_that_have_begun() -> None:
    """The first peer is not far ahead, and its snapshot is confirmed; the second is."""
    node, near, far = member(), member(), member()
    node.assign(turns(FIRST, 0, 0, [None, None, None, None, 2]))
    begun_to(node, 9)
    cycle = [1, None, None, None, None, None, None, 2, None, None, None, None]
    node.assign(turns(THIRD, 12, 0, cycle, adopts=True))
    near.assign(turns(THIRD, 12, 1, [0]))
    far.assign(turns(THIRD, 19, 2, [0]))
    node.received(1, begun(near)[0])
    begun(node)
    confirmed = node.received_from(1)
    assert confirmed > 0
    node.received(2, begun(far)[0])
    begun(node)
    assert node.iteration == 19
    assert node.received_from(1) == confirmed


def test_one_adopts_although_a_message_without_a_body_is_before_the_snapshot() -> None:
    """The peer has passed turns too, and says so first. Its older edge still stands here."""
    node, peer = member(), member()
    for number, each in enumerate((node, peer)):
        each.assign(turns(FIRST, 0, number, [1 - number, *[None] * 199]))
    first, answer = begun(peer)[0], begun(node)[1]
    node.received(1, first)
    peer.received(0, answer)
    mixed(node)
    mixed(peer)
    begun_to(node, 9)
    begun_to(peer, 99)
    peer.acknowledged(0, node.received_from(1))
    node.assign(turns(THIRD, 100, 0, [None, 1], adopts=True))
    peer.assign(turns(THIRD, 100, 1, [None, 0]))
    sent = [begun(peer)[0] for _ in range(2)]
    assert sent[0].codec == SKIP
    for message in sent:
        node.received(1, message)
    begun(node)
    assert node.iteration == 101


def test_a_snapshot_that_is_refused_ends_no_edge_of_others() -> None:
    node, faulty = member(), member()
    node.assign(turns(FIRST, 0, 0, [2]))
    begun_to(node, 9)
    node.assign(turns(THIRD, 100, 0, [1, 2], adopts=True))
    faulty.assign(turns(THIRD, 100, 1, [0]))
    node.received(1, replace(begun(faulty)[0], body=b"not parameters"))
    assert list(node.unreadable()) == [1]
    assert 2 in begun(node)  # a turn of the first topology
    assert node.iteration == 10


def test_adopting_keeps_the_edges_of_a_topology_that_holds_before_the_newest() -> None:
    node, peer = member(), member()
    node.assign(turns(FIRST, 0, 0, [3]))
    begun_to(node, 9)
    node.assign(turns(THIRD, 100, 0, [1, 2], adopts=True))
    node.assign(turns(FOURTH, 140, 0, [1], since={1: THIRD}, adopts=True))
    peer.assign(turns(THIRD, 100, 1, [0]))
    node.received(1, begun(peer)[0])
    assert 1 in begun(node)
    assert 2 in begun(node)
    assert node.iteration == 101


def test_a_newcomer_exchanges_by_an_edge_that_a_later_topology_begins_anew() -> None:
    newcomer, peer, other = member(), member(), member()
    newcomer.assign(turns(SECOND, 10, 0, [2, 1], adopts=True))
    newcomer.assign(turns(THIRD, 30, 0, [2], since={2: SECOND}, adopts=True))
    newcomer.assign(turns(FOURTH, 40, 0, [2, 1], since={2: SECOND, 1: FOURTH}, adopts=True))
    peer.assign(turns(SECOND, 11, 1, [0]))
    other.assign(turns(SECOND, 10, 2, [0]))
    newcomer.received(2, begun(other)[0])
    newcomer.received(1, begun(peer)[0])
    begun_to(newcomer, 10)
    assert begun(newcomer)[1].when == (SECOND, 11)


def test_a_newcomer_whose_edges_begin_anew_before_it_has_begun_adopts_by_the_newer_ones() -> None:
    newcomer, peer = member(), member()
    newcomer.assign(turns(SECOND, 3, 2, [0], adopts=True))
    newcomer.assign(turns(THIRD, 6, 2, [0], adopts=True))
    peer.assign(turns(THIRD, 6, 0, [2]))
    newcomer.received(0, begun(peer)[2])
    assert not newcomer.waits_to_adopt


def test_a_newcomer_adopts_once_although_later_topologies_say_so_again() -> None:
    """The coordinator says it until it has a report of the newcomer."""
    newcomer, first, other = member(), member(), member()
    newcomer.assign(turns(SECOND, 3, 2, [0], adopts=True))
    first.assign(turns(SECOND, 3, 0, [2]))
    newcomer.received(0, begun(first)[2])
    begun(newcomer)
    newcomer.x.fill_(5.0)
    newcomer.assign(turns(THIRD, 6, 2, [1], adopts=True))
    other.assign(turns(THIRD, 6, 1, [2]))
    newcomer.received(1, begun(other)[2])
    assert torch.equal(newcomer.x, torch.full_like(newcomer.x, 5.0))


def test_a_message_of_the_edge_that_begins_anew_ends_the_wait_for_the_older_one() -> None:
    """The peer heard of the topology in time, and this node hears of it late."""
    node, peer = member(), member()
    for number, each in enumerate((node, peer)):
        each.assign(turns(FIRST, 0, number, [1 - number]))
    node.received(1, begun(peer)[0])
    peer.received(0, begun(node)[1])
    mixed(node)
    mixed(peer)
    begun(node)  # iteration 1 of the first topology
    peer.assign(turns(THIRD, 1, 1, [0]))
    for message in peer.unacknowledged(0):
        peer.acknowledged(0, message.sequence)
    message = begun(peer)[0]
    assert message.when == (THIRD, 1), "the older edge has ended"
    node.received(1, message)
    assert node.computed(0.0) is None
    assert node.assign(turns(THIRD, 1, 0, [1], adopts=True)) is not None
