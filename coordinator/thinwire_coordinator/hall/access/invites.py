"""The rules of invites: whether an invite admits one more node, and why not."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from thinwire_coordinator.hall.access.refusals import Denied, DoorReason

EXPIRES = "7d"
"""When an invite expires, unless the organizer says otherwise."""
OPEN_PER_ADDRESS = 4
"""Nodes that one address may enrol in a day with an open invite, unless the organizer says otherwise: a household's."""
ADDRESS_EVERY_S = 24 * 3600.0
"""`per_address_max` bounds the nodes of an address within this time."""
IPV6_NETWORK_BITS = 64
"""A home or a rented server gets at least a /64 of IPv6, so all addresses of a /64 count as one."""


@dataclass(frozen=True)
class InviteRecord:
    """An invite as the coordinator keeps it. Times are Unix time in seconds.

    name: for the organizer. uses: nodes that enrolled with it; uses_max: None for any number. per_address_max: nodes
    that one address may enrol in a day, for an invite that is public; None for any number.
    """

    number: int
    name: str
    uses: int
    uses_max: int | None
    per_address_max: int | None
    made: float
    expires: float | None
    revoked: float | None

    @property
    def is_open(self) -> bool:
        """Whether it is meant to be public."""
        return self.per_address_max is not None

    def state(self, now: float) -> str:
        """In one word: valid, revoked, expired or used_up."""
        denied = why_not(self, 0, now)
        return "valid" if denied is None else denied.reason.value


def why_not(invite: InviteRecord, from_address: int, now: float) -> Denied | None:
    """Return the reason why an invite does not admit one more node, or None if it does.

    from_address: nodes that the same address enrolled with it within ADDRESS_EVERY_S.
    """
    ask = "ask the organizer for a new one"
    if invite.revoked is not None:
        return Denied(DoorReason.REVOKED, f"this invite was revoked; {ask}")
    if invite.expires is not None and now >= invite.expires:
        return Denied(DoorReason.EXPIRED, f"this invite has expired; {ask}")
    if invite.uses_max is not None and invite.uses >= invite.uses_max:
        nodes = "one node" if invite.uses_max == 1 else f"{invite.uses_max} nodes"
        return Denied(DoorReason.USED_UP, f"this invite was for {nodes}, and is used up; {ask}")
    if invite.per_address_max is not None and from_address >= invite.per_address_max:
        text = f"{from_address} nodes have enrolled from this address in a day; ask the organizer for another invite"
        return Denied(DoorReason.RATE, text)
    return None


def network_of(address: str) -> str:
    """The network that counts as one address: an IPv4 address, or a /64 of IPv6. Other text stands for itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 6 and (mapped := found.ipv4_mapped) is not None:
        found = mapped
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False))
