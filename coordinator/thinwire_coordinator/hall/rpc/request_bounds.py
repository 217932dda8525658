"""The largest message of each call, in bytes, as a stranger may send it.

gRPC has one limit for all calls of a port, `REQUEST_BYTES_MAX`; the guard applies these before it parses.
"""

from __future__ import annotations

from thinwire_proto.wire.parts import EXAMINE_PART_BYTES, PART_BYTES_MAX
from thinwire_proto.wire.service_pb2 import DESCRIPTOR, JoinRequest

SERVICE = DESCRIPTOR.services_by_name["Swarm"].full_name

HEADER_BYTES_MAX = 4 << 10
"""All fields of a contribution's header and the envelope of its part."""
SMALL_BYTES_MAX = 4 << 10
"""A request of a few numbers, hashes and short names."""
SKETCH_BYTES_MAX = 4 << 10
"""The sketch of a node's parameters in a Beat, `gossip.consensus.SKETCH_BYTES`; a test compares the two."""
KEPT_BYTES_MAX = 128 << 10
"""Bytes of a Join beside the contract, among them 32 for each contribution that the node sent since it saved."""
REQUEST_BYTES_MAX = PART_BYTES_MAX + KEPT_BYTES_MAX
"""Of the whole port: a part of a contribution, or a contract of up to PART_BYTES_MAX."""
NAME_BYTES_MAX = 1 << 10
"""A node's name as it arrives; `members.readable` shortens it."""

FOR_STRANGERS = frozenset({"Examine", "Follow", "Hello", "Join", "Status"})
"""Calls of the swarm that need no session. Other services of the port, such as health, need none either."""
LARGE = {
    "Join": REQUEST_BYTES_MAX,
    "Examine": EXAMINE_PART_BYTES + SMALL_BYTES_MAX,
    "Beat": SMALL_BYTES_MAX + SKETCH_BYTES_MAX,
    "Contribute": PART_BYTES_MAX + HEADER_BYTES_MAX,
    "Deposit": PART_BYTES_MAX + HEADER_BYTES_MAX,
    "Relay": PART_BYTES_MAX + HEADER_BYTES_MAX,
}


LASTING = frozenset({"Follow"})
"""Those of them that may last: their first message proves the key of the run."""


def may_last(method: str) -> bool:
    service, _, call = method.rpartition("/")
    return call in LASTING and service == f"/{SERVICE}"


def is_for_strangers(method: str) -> bool:
    service, _, call = method.rpartition("/")
    return call in FOR_STRANGERS or service != f"/{SERVICE}"


def join_too_large(request: JoinRequest) -> str:
    """Return the reason to refuse a Join before its fields are used; empty if they are within their bounds."""
    if len(request.name.encode()) > NAME_BYTES_MAX:
        return f"a node's name has at most {NAME_BYTES_MAX} bytes"
    if request.ByteSize() - len(request.contract) > KEPT_BYTES_MAX:
        return f"a Join has at most {KEPT_BYTES_MAX} bytes beside its contract"
    return ""


def request_bytes_max(method: str) -> int:
    """The bound of a call, by its full name (/package.Service/Call)."""
    return LARGE.get(method.rpartition("/")[2], SMALL_BYTES_MAX)
