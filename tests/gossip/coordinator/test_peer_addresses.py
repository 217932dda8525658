"""The address at which the peers of a node reach it, as its report names it."""

from __future__ import annotations

import pytest

from thinwire_coordinator.gossip.judging import ADDRESS_LENGTH_MAX, address_of
from thinwire_coordinator.gossip.participants import Participant
from thinwire_proto.errors import PayloadError


@pytest.mark.parametrize(
    ("listens_at", "host", "address"),
    [
        ("", "192.0.2.1", ""),
        ("node.example:7000", "192.0.2.1", "node.example:7000"),
        ("[2001:db8::1]:7000", "192.0.2.1", "[2001:db8::1]:7000"),
        (":7000", "192.0.2.1", "192.0.2.1:7000"),
        (":7000", "2001:db8::1", "[2001:db8::1]:7000"),
    ],
)
def test_a_port_alone_is_at_the_host_that_the_coordinator_sees(listens_at: str, host: str, address: str) -> None:
    assert address_of(listens_at, host) == address


@pytest.mark.parametrize("listens_at", ["x", "host:", "a b:1", "\x1b:1", "a" * ADDRESS_LENGTH_MAX + ":1", "::1:7000"])
def test_what_is_no_address_is_refused(listens_at: str) -> None:
    with pytest.raises(PayloadError, match="not HOST:PORT"):
        address_of(listens_at, "192.0.2.1")


def test_an_address_is_not_kept_in_the_ledger() -> None:
    known = Participant("a" * 32, 0, address="192.0.2.77:7000")
    assert "192.0.2.77" not in repr(known.plain())
    assert Participant.from_plain(known.plain(), 0.0).address == ""
