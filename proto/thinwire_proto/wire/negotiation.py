"""Protocol versions, and the choice of the version that a connection uses.

A node tells at `Join` which versions it speaks, and the coordinator chooses one. The version alone determines what
each end may expect of the other.

The version increases when a call or a payload changes in a way that the other end must know.
"""

from __future__ import annotations

from thinwire_proto.errors import ContractError
from thinwire_proto.version import VERSION

PROTOCOL = 5
"""The newest version that this thinwire speaks."""
OLDEST_SERVED = 5
"""The oldest version that this coordinator serves."""
OLDEST_SPOKEN = 5
"""The oldest version that this node speaks."""


def choose(newest: int, oldest: int) -> int:
    """For the coordinator: choose the version to use with a node that speaks `oldest` to `newest`.

    oldest: 0 if the node did not send it; then it speaks only one version. Raises ContractError.
    """
    chosen = min(newest, PROTOCOL)
    spoken = f"this coordinator speaks protocols {OLDEST_SERVED} to {PROTOCOL}, the node {newest}"
    if newest < OLDEST_SERVED:
        raise ContractError(f"{spoken}: the node is the older one; update the node to thinwire {VERSION}")
    if chosen < (oldest or newest):
        raise ContractError(f"{spoken}: the coordinator is the older one, with thinwire {VERSION}; update it")
    return chosen


def check_chosen(chosen: int) -> None:
    """For the node: raise ContractError if it does not speak the version that the coordinator chose."""
    if not OLDEST_SPOKEN <= chosen <= PROTOCOL:
        raise ContractError(
            f"the coordinator chose protocol {chosen}, but this node speaks {OLDEST_SPOKEN} to {PROTOCOL} "
            f"(thinwire {VERSION}); update the older of the two"
        )
