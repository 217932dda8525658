"""Says why a node with another contract cannot take part."""

from __future__ import annotations

from thinwire_proto.contract import Contract, differences, parse_contract
from thinwire_proto.errors import ContractError

COMPARED_FACTOR, COMPARED_MORE = 4, 1 << 16
"""A contract with more than so many times the bytes of the run's own, and so many more, is not read: comparing takes
time in proportion to them."""


def other_run(ours: Contract, theirs: bytes) -> str:
    """How the contract of a joining node differs from the run's, and what to do."""
    if len(theirs) > COMPARED_FACTOR * len(ours.written) + COMPARED_MORE:
        found = [f"{len(ours.written)} bytes here, {len(theirs)} there"]
    else:
        try:
            parsed = parse_contract(theirs)
        except ContractError as error:
            return str(error)
        # two runs may have contracts with equal fields
        found = differences(ours, parsed) or [f"the hash: {ours.hash.hex()[:16]} here, {parsed.hash.hex()[:16]} there"]
    return (
        f"the contracts differ ('here' is the coordinator): {'; '.join(found)}; "
        "start the node with another --state-dir to take part in this run"
    )
