"""Tests of the choice of the protocol version at Join."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.small import small_contract
from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import ContractError
from thinwire_proto.wire.negotiation import ABILITIES, OLDEST_SERVED, OLDEST_SPOKEN, PROTOCOL, check_chosen, choose

NEW = small_contract()
OLD = parse_contract((Path(__file__).parents[1] / "golden" / "demo" / "coordinator" / "contract.json").read_bytes())


@pytest.mark.parametrize(
    ("newest", "oldest", "contract", "chosen"),
    [(2, 0, OLD, 2), (3, 0, OLD, 3), (3, 3, NEW, 3), (3, 2, OLD, 3), (4, 3, NEW, 3), (9, 1, OLD, 3)],
)
def test_the_newest_common_version_is_chosen(newest: int, oldest: int, contract: object, chosen: int) -> None:
    assert choose(newest, oldest, NEW if contract is NEW else OLD) == chosen


@pytest.mark.parametrize(
    ("newest", "oldest", "said"),
    [
        (1, 0, "the node is the older one; update the node to thinwire 0.3.0"),
        (0, 0, "the node is the older one"),
        (2, 0, "format 2, which needs protocol 3, but the node speaks 2; update the node to thinwire 0.2.0 or newer"),
        (4, 0, "the coordinator is the older one"),
        (5, 4, "the coordinator is the older one"),
    ],
)
def test_an_error_names_the_end_to_update(newest: int, oldest: int, said: str) -> None:
    with pytest.raises(ContractError) as error:
        choose(newest, oldest, NEW)
    assert said in str(error.value)


def test_the_node_checks_the_chosen_version() -> None:
    for chosen in range(OLDEST_SPOKEN, PROTOCOL + 1):
        check_chosen(chosen)
    for chosen in (0, OLDEST_SPOKEN - 1, PROTOCOL + 1):
        with pytest.raises(ContractError, match=f"the coordinator chose protocol {chosen}"):
            check_chosen(chosen)


def test_a_coordinator_serves_its_own_version_and_the_one_before() -> None:
    assert list(ABILITIES) == [OLDEST_SERVED, PROTOCOL] == [PROTOCOL - 1, PROTOCOL]
