"""Tests which addresses of a contract a node opens: the public internet over https, and those that are allowed."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from thinwire_node.data_addresses import NETWORKS, PUBLIC, DataAddresses, read_networks
from thinwire_proto.contract.sections import check_addresses

NOT_PUBLIC = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32"),
    *("::/128", "::1/128", "::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "200::/7"),
    *("2001::/32", "2001:1::1/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28", "2001:20::/28"),
    *("2001:30::/28", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "4000::/3", "5f00::/16", "8000::/1"),
    *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "ff0e::/16"),
    # addresses that lead to an IPv4 address, and the ranges of IPv4 that they must not lead to
    *("::ffff:127.0.0.0/104", "::ffff:192.168.0.0/112", "::ffff:0.0.0.0/104", "::ffff:224.0.0.0/100"),
    *("64:ff9b::127.0.0.0/104", "64:ff9b::192.168.0.0/112", "64:ff9b::169.254.169.254/128", "64:ff9b::0.0.0.0/104"),
    *("2002:7f00::/24", "2002:c0a8::/32", "2002:a9fe:a9fe::/48", "2002::/24", "2002:6440::/26"),
]
"""One network each, whose first and last addresses are refused. 2001::/23 stands here in its parts."""


@pytest.mark.parametrize("network", NOT_PUBLIC)
def test_addresses_that_are_not_of_the_public_internet_are_refused(network: str) -> None:
    found = ip_network(network)
    for address in (found[0], found[found.num_addresses // 2], found[-1]):
        assert PUBLIC.refusal(address, "https"), address


@pytest.mark.parametrize(
    "address",
    [
        *("8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.255.255.255"),
        *("172.15.255.255", "172.32.0.1", "192.0.1.1", "192.0.3.1", "198.17.255.255", "198.20.0.1", "223.255.255.255"),
        *("2001:200::1", "2001:4860:4860::8888", "2001:db7::1", "2001:db9::1", "2003::1", "2606:4700::1111"),
        *("2000::1", "2620:4f:8001::1", "2a00:1450::1", "3ffe::1", "3fff:1000::1"),
        *("::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"),
    ],
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
