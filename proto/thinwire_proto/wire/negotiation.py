"""Versions of the protocol, and which one the two ends of a connection use.

A node says at `Join` which versions it speaks, and the coordinator chooses. What is asked of the other end follows from
the version alone, and only from the table here. A coordinator serves its own version and the one before.

The number goes up when a call, or what is in a payload, changes so that the other end has to know it.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.contract import Contract
from thinwire_proto.errors import ContractError
from thinwire_proto.version import VERSION
from thinwire_proto.wire.rows import version_for

PROTOCOL = 3
"""The newest that this thinwire speaks."""
OLDEST_SERVED = 2
"""The oldest that a coordinator of this thinwire serves."""
OLDEST_SPOKEN = 3
"""The oldest that a node of this thinwire speaks."""


@dataclass(frozen=True)
class Abilities:
    """What an end that speaks a version can do."""

    since: str
    """The first thinwire that speaks it."""
    contract_version: int
    """The newest format of contracts that it reads."""
    row_version: int
    """The newest format of rows that it reads."""


ABILITIES = {
    2: Abilities(since="0.1.0", contract_version=1, row_version=1),
    3: Abilities(since="0.2.0", contract_version=2, row_version=2),
}


def choose(newest: int, oldest: int, contract: Contract) -> int:
    """The coordinator's part: the version to use with a node that speaks `oldest` to `newest`, in a run of this
    contract. oldest: 0 if the node did not say, which means that it speaks one version. Raises ContractError."""
    chosen = min(newest, PROTOCOL)
    spoken = f"this coordinator speaks protocols {OLDEST_SERVED} to {PROTOCOL}, the node {newest}"
    if newest < OLDEST_SERVED:
        raise ContractError(f"{spoken}: the node is the older one, so update the node to thinwire {VERSION}")
    if chosen < (oldest or newest):
        raise ContractError(f"{spoken}: the coordinator is the older one, with thinwire {VERSION}: update it")
    abilities = ABILITIES[chosen]
    if contract.version > abilities.contract_version or version_for(contract) > abilities.row_version:
        needed = next(number for number, able in ABILITIES.items() if able.contract_version >= contract.version)
        raise ContractError(
            f"this run's contract has format {contract.version}, which needs protocol {needed}, and the node speaks "
            f"{newest}: update the node to thinwire {contract.requires} or newer"
        )
    return chosen


def check_chosen(chosen: int) -> Abilities:
    """The node's part: what the coordinator can do. Raises ContractError if it chose a version that this node does not
    speak."""
    if not OLDEST_SPOKEN <= chosen <= PROTOCOL:
        raise ContractError(
            f"the coordinator chose protocol {chosen}, and this node speaks {OLDEST_SPOKEN} to {PROTOCOL}; "
            f"this is thinwire {VERSION}: update the older of the two"
        )
    return ABILITIES[chosen]
