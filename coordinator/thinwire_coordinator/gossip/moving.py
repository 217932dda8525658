"""Moves the members of a topology to places where an iteration is shorter, if that pays. Pure.

A new edge costs two snapshots in each direction. So members move only if the iterations that are left gain more than
snapshots take, and if an iteration becomes a good deal shorter: times are measured, and vary.

It takes up to a second, so it runs on a worker.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from thinwire_coordinator.gossip.formation import FormedTopology, Moving, Plan, form_at, present, topology_at
from thinwire_coordinator.gossip.places import Places
from thinwire_proto.gossip.arcs import cycle_of
from thinwire_proto.gossip.placement import Floats, LineSeconds, iteration_seconds, place

GAIN_LEAST = 0.1
"""Of an iteration: what is gained at least."""
PAYBACK = 2.0
"""All iterations that are left gain at least this multiple of the seconds of the snapshots."""


def move(kind: str, plan: Plan, older: FormedTopology) -> FormedTopology | None:
    """The topology with the same members at other places; None if it is not worth it. plan: has `moving`."""
    moving, members = plan.moving, present(older.places)
    assert moving is not None
    rows = [plan.members.index(member) for member in members]
    message_s, computing_s = moving.message_s[np.ix_(rows, rows)], moving.computing_s[rows]
    lines = LineSeconds(message_s, np.zeros_like(message_s))  # half a round trip is little beside what pays
    cycle = cycle_of(topology_at(kind, older.places))
    order = place(cycle, lines, computing_s, plan.number)
    before, after = iteration_seconds(np.asarray([range(len(order)), order]), cycle, lines, computing_s)
    reason = f"at these places, an iteration is expected to take {after:.3g} s in place of {before:.3g} s"
    moved = iter([members[one] for one in order])
    places: Places = tuple(None if member is None else next(moved) for member in older.places)
    formed = form_at(kind, replace(plan, reason=reason), places, older.edges)
    gained_s = (before - after) * moving.iterations_left
    if after > before * (1 - GAIN_LEAST) or gained_s < PAYBACK * _snapshots_s(formed, members, message_s, moving):
        return None
    return formed


def _snapshots_s(formed: FormedTopology, members: list[int], message_s: Floats, moving: Moving) -> float:
    """Seconds of the snapshots that a member sends, of the one for which they take longest."""
    row = {member: number for number, member in enumerate(members)}
    seconds: dict[int, float] = defaultdict(float)
    for (one, other), since in formed.edges.items():
        if since == formed.plan.number:
            for sender, receiver in ((one, other), (other, one)):
                seconds[sender] += float(message_s[row[sender], row[receiver]]) * moving.snapshot_messages
    return max(seconds.values(), default=0.0)
