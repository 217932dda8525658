"""Tests which addresses of a contract a node opens: the public internet over https, and those that are allowed."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from thinwire_node.data_addresses import (
    NETWORKS,
    PUBLIC,
    SCHEMES,
    DataAddresses,
    is_at_home,
    is_public,
    read_networks,
)
from thinwire_proto.contract.data.prepared import check_addresses

NOT_PUBLIC = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254"),
    *("224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
    *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1"),
    *("64:ff9b::7f00:1", "64:ff9b::192.168.1.1", "2002:7f00:1::", "2002:c0a8:101::1"),
    *("::ffff:127.0.0.1", "::ffff:192.168.1.1"),
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_of_the_public_internet_are_refused(address: str) -> None:
    assert PUBLIC.refusal(ip_address(address), "https")


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_addresses_of_the_public_internet_are_allowed(address: str) -> None:
    assert PUBLIC.refusal(ip_address(address), "https") == ""


@pytest.mark.parametrize(
    ("allowed", "address", "is_allowed"),
    [
        ("loopback", "127.0.0.1", True),
        ("loopback", "::1", True),
        ("loopback", "::ffff:127.0.0.1", True),
        ("loopback", "192.168.1.1", False),
        ("private", "192.168.1.1", True),
        ("private", "fd00::1", True),
        ("private", "127.0.0.1", False),
        ("private", "169.254.169.254", False),  # where clouds keep the credentials of a machine
        ("192.168.7.0/24", "192.168.7.9", True),
        ("192.168.7.0/24", "192.168.8.9", False),
    ],
)
def test_the_volunteer_may_allow_more(allowed: str, address: str, is_allowed: bool) -> None:
    chosen = DataAddresses(networks=read_networks([allowed]))
    assert (chosen.refusal(ip_address(address), "https") == "") == is_allowed


def test_http_leads_to_this_machine_only_unless_the_volunteer_names_it() -> None:
    own = DataAddresses(networks=NETWORKS["loopback"])
    assert PUBLIC.scheme_refusal("http")
    assert own.scheme_refusal("http") == ""
    assert "http from its own machine only" in own.refusal(ip_address("8.8.8.8"), "http")
    assert own.refusal(ip_address("127.0.0.1"), "http") == ""
    plain = DataAddresses(schemes=frozenset({"https", "http"}))
    assert plain.scheme_refusal("http") == plain.refusal(ip_address("8.8.8.8"), "http") == ""
    assert plain.refusal(ip_address("127.0.0.1"), "http")


def test_only_https_is_read_by_default() -> None:
    assert [scheme for scheme in SCHEMES if not PUBLIC.scheme_refusal(scheme)] == ["https"]
    assert DataAddresses(frozenset({"file"})).scheme_refusal("s3")
    for scheme in ("file", "ftp", "data", "jar", ""):
        assert "never reads" in PUBLIC.scheme_refusal(scheme)


def test_the_home_of_an_ipv6_machine_is_recognized_by_its_own_address() -> None:
    own = ip_address("2606:4700:1:aa00::5")
    neighbour, stranger = ip_address("2606:4700:1:aa01::1"), ip_address("2606:4700:1:ab00::1")
    assert is_public(neighbour)
    assert "in the network of this machine" in PUBLIC.refusal(neighbour, "https", own)
    assert PUBLIC.refusal(stranger, "https", own) == ""
    assert is_at_home(ip_address("9.9.9.9"), ip_address("9.9.9.9"))
    assert not is_at_home(ip_address("9.9.9.8"), ip_address("9.9.9.9"))


@pytest.mark.parametrize("given", ["lan", "10.0.0.1/8", "https://x"])
def test_a_wrong_network_is_named(given: str) -> None:
    with pytest.raises(ValueError, match="is not loopback, private or a network"):
        read_networks([given])


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://a.example/x", "gopher://a.example/x", "data:text/plain,x", "https:/a.example/x"),
        *("https://user:secret@a.example/x", "https://a.example/x?query", "https://a.example/x#part", "//a.example/x"),
        *(
            "https://a.example/\r\nHost: b",
            "https://a.example\\@127.0.0.1/",
            "HTTPS://a.example/x",
            " https://a.example",
        ),
    ],
)
def test_a_contract_cannot_hold_other_addresses(url: str) -> None:
    with pytest.raises(ValueError, match="must begin with"):
        check_addresses((url,))
