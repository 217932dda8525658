"""Peers of a node in texts for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thinwire_node.exchange.short_names import short_name
from thinwire_node.gossip.port import PeerPlace

NAMED_MAX = 4


def names_of(peers: Iterable[int], places: Mapping[int, PeerPlace]) -> str:
    """The first digits of their ids, as in `1a2b3c4d, 5e6f7a8b and 3 more`; empty without peers. A peer whose id is not
    known has its member number."""
    known = sorted(peers)
    named = [short_name(places[peer].key.node_id) if peer in places else f"member {peer}" for peer in known[:NAMED_MAX]]
    more = len(known) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
