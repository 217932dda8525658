"""Tests of the choice of the protocol version at Join."""

from __future__ import annotations

import pytest

from thinwire_proto.errors import ContractError
from thinwire_proto.wire.negotiation import OLDEST_SPOKEN, PROTOCOL, check_chosen, choose


@pytest.mark.parametrize(("newest", "oldest", "chosen"), [(5, 0, 5), (5, 5, 5), (5, 2, 5), (6, 5, 5), (9, 1, 5)])
def test_the_newest_common_version_is_chosen(newest: int, oldest: int, chosen: int) -> None:
    assert choose(newest, oldest) == chosen


@pytest.mark.parametrize(
    ("newest", "oldest", "said"),
    [
        (1, 0, "the node is the older one; update the node to thinwire 0.3.0"),
        (0, 0, "the node is the older one"),
        (4, 0, "the node is the older one"),
        (6, 0, "the coordinator is the older one"),
        (7, 6, "the coordinator is the older one"),
    ],
)
def test_an_error_names_the_end_to_update(newest: int, oldest: int, said: str) -> None:
    with pytest.raises(ContractError) as error:
        choose(newest, oldest)
    assert said in str(error.value)


def test_the_node_checks_the_chosen_version() -> None:
    for chosen in range(OLDEST_SPOKEN, PROTOCOL + 1):
        check_chosen(chosen)
    for chosen in (0, OLDEST_SPOKEN - 1, PROTOCOL + 1):
        with pytest.raises(ContractError, match=f"the coordinator chose protocol {chosen}"):
            check_chosen(chosen)
