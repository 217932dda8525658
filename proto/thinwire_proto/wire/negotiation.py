"""Protocol versions, and the choice of the version that a connection uses.

A node tells at `Join` which versions it speaks, and the coordinator chooses one. The version alone determines, by the
table here, what each end may expect of the other. Versions 2 and 3 (thinwire 0.1.0 and 0.2.0) had no identities, so
nobody serves them any longer; runs that began with them go on.

The version increases when a call or a payload changes in a way that the other end must know.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.errors import ContractError
from thinwire_proto.version import VERSION

PROTOCOL = 4
"""The newest version that this thinwire speaks."""
OLDEST_SERVED = 4
"""The oldest version that this coordinator serves: the first in which nodes prove who they are."""
OLDEST_SPOKEN = 4
"""The oldest version that this node speaks."""


@dataclass(frozen=True)
class Abilities:
    """The abilities of an end that speaks a protocol version."""

    since: str
    """The first thinwire that speaks this version."""
    contract_version: int
    """The newest contract format that the end reads."""
    row_version: int
    """The newest row format that the end reads."""


ABILITIES = {4: Abilities(since="0.3.0", contract_version=2, row_version=2)}


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


def check_chosen(chosen: int) -> Abilities:
    """For the node: return what the coordinator can do with the chosen version.

    Raises ContractError if this node does not speak that version.
    """
    if not OLDEST_SPOKEN <= chosen <= PROTOCOL:
        raise ContractError(
            f"the coordinator chose protocol {chosen}, but this node speaks {OLDEST_SPOKEN} to {PROTOCOL} "
            f"(thinwire {VERSION}); update the older of the two"
        )
    return ABILITIES[chosen]
