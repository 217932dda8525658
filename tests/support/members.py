"""Single members in a gossip run, whose messages a test carries by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.edges import FIRST_TOPOLOGY
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.message import Message

FIRST, SECOND, THIRD, FOURTH = (FIRST_TOPOLOGY + number for number in range(4))
LAYOUT = TileLayout([Parameter(name="x", shape=(8,))])
SETTINGS = MemberSettings("dense", 1.0, 0, 5.0)


def member(iterations: int | None = None) -> Member:
    settings = SETTINGS if iterations is None else replace(SETTINGS, iterations=iterations)
    return Member(LAYOUT, settings, torch.zeros(LAYOUT.parameters))


def turns(
    topology: int,
    start: int,
    number: int,
    peers: Sequence[int | None],
    *,
    since: Mapping[int, int] | None = None,
    adopts: bool = False,
) -> Assignment:
    """The part of a member: it exchanges with one of the peers after the other, or with none. since: of each edge; by
    default they begin with this topology."""
    cycle = tuple({} if peer is None else {peer: 0.5} for peer in peers)
    began = {peer: topology for peer in peers if peer is not None} if since is None else dict(since)
    return Assignment(topology, start, number, cycle, began, adopts)


def begun(node: Member) -> dict[int, Message]:
    """Begin an iteration and save it. Returns the messages, by peer."""
    messages = dict(node.begin())
    node.state()
    node.saved()
    return messages


def begun_to(node: Member, iteration: int) -> None:
    """Begin iterations up to this one."""
    while node.iteration < iteration:
        begun(node)


def sent_by(node: Member) -> list[tuple[int, tuple[int, int], str]]:
    """Begin an iteration. Returns the peer, the turn and the codec of each message."""
    return [(peer, message.when, message.codec) for peer, message in begun(node).items()]


def mixed(node: Member) -> None:
    """The gradient is there, and nobody is waited for."""
    mix = node.computed(0.0)
    assert mix is not None
    node.mix(mix)
