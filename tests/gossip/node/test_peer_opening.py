"""Direct lines: the end that dials, the option --peers, and the addresses that a node listens on and connects to."""

from __future__ import annotations

import socket

import pytest

from thinwire_node.data_addresses import LOOPBACK, PRIVATE, IpNetwork
from thinwire_node.gossip.lines.direct_lines import Opening, networks_of, opening, refusal_of
from thinwire_node.peer_settings import ALL, PeerSettings, bind_host, read_peers

SMALL, LARGE = "1" * 32, "2" * 32


@pytest.mark.parametrize("one_listens", [True, False])
@pytest.mark.parametrize("two_listens", [True, False])
def test_exactly_one_end_dials_if_one_listens(*, one_listens: bool, two_listens: bool) -> None:
    ends = [
        opening(SMALL, LARGE, "two:1" if two_listens else "", listens=one_listens, dials=True),
        opening(LARGE, SMALL, "one:1" if one_listens else "", listens=two_listens, dials=True),
    ]
    if one_listens or two_listens:
        assert sorted(end.value for end in ends) == ["await", "dial"]
        assert ends[0] is (Opening.DIAL if two_listens else Opening.AWAIT)
    else:
        assert ends == [Opening.RELAY, Opening.RELAY]


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("relay", PeerSettings(dials=False)),
        ("7710", PeerSettings(7710)),
        ("node.example:7710", PeerSettings(7710, "node.example")),
        ("my_node:7710", PeerSettings(7710, "my_node")),
        ("[2001:db8::1]:7710", PeerSettings(7710, "[2001:db8::1]")),
    ],
)
def test_the_option_is_a_port_an_address_or_the_relay(text: str, settings: PeerSettings) -> None:
    assert read_peers(text) == settings


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("", ALL),
        ("node.example", ALL),
        ("192.0.2.77", ALL),  # of a router that passes connections on
        ("[2001:db8::77]", ALL),
    ],
)
def test_a_node_listens_on_its_own_address_or_on_all(host: str, bound: str) -> None:
    assert bind_host(host) == bound


@pytest.mark.parametrize(
    ("coordinator", "networks"),
    [
        ("127.0.0.1", LOOPBACK + PRIVATE),
        ("localhost", LOOPBACK + PRIVATE),
        ("192.168.1.7", PRIVATE),
        ("fd00::1", PRIVATE),
        ("192.0.2.1", ()),
        ("run.example", ()),
    ],
)
def test_a_node_is_in_the_networks_of_its_coordinator(coordinator: str, networks: tuple[IpNetwork, ...]) -> None:
    assert networks_of(coordinator) == networks


def test_addresses_beyond_these_networks_are_refused() -> None:
    def refused(address: str, *networks: IpNetwork) -> bool:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return bool(refusal_of(networks)((family, (address, 443))))

    for address in ("127.0.0.1", "192.168.1.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1", "fe80::1%eth0"):
        assert refused(address), address
    assert not refused("8.8.8.8")
    assert not refused("192.168.1.1", *PRIVATE)
    assert refused("127.0.0.1", *PRIVATE)
    assert not refused("127.0.0.1", *LOOPBACK)
