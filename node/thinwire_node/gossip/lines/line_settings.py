"""The settings of lines: how a node has direct ones, and their times."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_common.reach.happy_eyeballs import Refusal
from thinwire_node.gossip.lines.server import PeerServer
from thinwire_proto.limits import ACCEPT_S, PEER_DIRECT_S, PEER_RETRY_FIRST_S, PEER_RETRY_MAX_S


@dataclass(frozen=True)
class DirectLines:
    """The means of direct lines. server: on which it listens; None: it does not. listens_at: HOST:PORT, or :PORT,
    at which peers reach it. refusal: of addresses that it does not connect to; None: it connects to none."""

    server: PeerServer | None = None
    listens_at: str = ""
    refusal: Refusal | None = None


@dataclass(frozen=True)
class LineTimes:
    """In seconds; see `limits`. first_s, max_s: pauses before a line is begun again. direct_s: for a direct connection,
    before the relay is used. accept_s: for a peer to take a parcel."""

    first_s: float = PEER_RETRY_FIRST_S
    max_s: float = PEER_RETRY_MAX_S
    direct_s: float = PEER_DIRECT_S
    accept_s: float = ACCEPT_S
