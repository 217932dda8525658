"""Tests of the transport, and of the check whether the address in invites can be reached."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from ipaddress import ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from thinwire_coordinator.hall.access.addresses import Reach, classify
from thinwire_coordinator.hall.access.transport import (
    GivenCertificates,
    Rotation,
    TlsSettings,
    Transport,
    plain_transport,
)
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.certificates import Certificate, new_authority, new_leaf
from thinwire_proto.identity.keys import SecretKey

FILE = Path("file.pem")
KEY = SecretKey(bytes(range(32)))


@pytest.mark.parametrize(
    ("settings", "listen", "http", "text"),
    [
        (TlsSettings(insecure=True), "0.0.0.0:7700", None, "--insecure is for this machine only, and --listen 0"),
        (TlsSettings(insecure=True), "192.168.1.2:7700", None, "--listen 127.0.0.1:7700"),
        (TlsSettings(insecure=True), "127.0.0.1:7700", "[::]:7701", "--http"),
        (TlsSettings(insecure=True, certificate=FILE, key=FILE), "127.0.0.1:7700", None, "leave out --tls-cert"),
        (TlsSettings(certificate=FILE), "0.0.0.0:7700", None, "belong together"),
        (TlsSettings(key=FILE), "0.0.0.0:7700", None, "belong together"),
        (TlsSettings(FILE, FILE, ip_network("10.0.0.0/8")), "0.0.0.0:7700", None, "the proxy has the certificate"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: TlsSettings, listen: str, http: str | None, text: str
) -> None:
    with pytest.raises(ConfigError, match=text.replace("[", r"\[")):
        settings.check(listen, http)


def test_only_the_proxy_and_this_machine_may_use_plain_text(tmp_path: Path) -> None:
    transport = Transport(TlsSettings(proxy=ip_network("10.1.0.0/16")), tmp_path, KEY, [])
    assert transport.certificates is None
    assert transport.public_tls
    assert transport.invites_needed
    allowed = [
        host
        for host in ("10.1.2.3", "10.2.0.1", "127.0.0.1", "::1", "::ffff:10.1.9.9", "::ffff:10.2.0.1", "x")
        if transport.may_connect(host)
    ]
    assert allowed == ["10.1.2.3", "127.0.0.1", "::1", "::ffff:10.1.9.9"]
    assert not list(tmp_path.iterdir())


def test_the_page_is_encrypted_unless_it_stays_on_this_machine(tmp_path: Path) -> None:
    transport = Transport(TlsSettings(), tmp_path, KEY, ["0.0.0.0:7700", "run.example:7700"])
    assert transport.page_certificate("127.0.0.1:7701") is None
    assert transport.page_certificate("localhost:7701") is None
    found = transport.page_certificate("0.0.0.0:7701")
    assert found is not None
    assert transport.certificates is not None
    assert found == transport.certificates.current
    assert not transport.public_tls
    assert plain_transport().page_certificate("127.0.0.1:1") is None


async def test_a_replacement_that_cannot_serve_leaves_the_old_certificate_in_use(tmp_path: Path) -> None:
    """One that has expired, and one whose key OpenSSL refuses."""
    now, chain, key = datetime.now(timezone.utc), tmp_path / "chain", tmp_path / "key"

    def write(certificate: Certificate) -> None:
        chain.write_bytes(certificate.chain)
        key.write_bytes(certificate.key)

    write(good := new_leaf(new_authority(now), KEY, [], now))
    given, served = GivenCertificates(chain, key, now), list[Certificate]()
    rotation = Rotation(given)
    rotation.watchers.append(served.append)
    write(new_leaf(new_authority(now), KEY, [], now - timedelta(days=4000)))
    await rotation.look(now)
    weak = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "host")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(weak.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=30))
    names = x509.SubjectAlternativeName([x509.DNSName("host")])
    signed = made.add_extension(names, critical=False).sign(weak, SHA256())
    chain.write_bytes(signed.public_bytes(Encoding.PEM))
    key.write_bytes(weak.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    await rotation.look(now)
    assert given.current == good
    assert not served
    with pytest.raises(ConfigError, match="OpenSSL refuses it"):
        GivenCertificates(chain, key, now)


def test_the_organizers_certificate_serves_nodes_and_page(tmp_path: Path) -> None:
    leaf = new_leaf(new_authority(datetime.now(timezone.utc)), KEY, [], datetime.now(timezone.utc))
    (tmp_path / "chain").write_bytes(leaf.chain)
    (tmp_path / "key").write_bytes(leaf.key)
    transport = Transport(TlsSettings(tmp_path / "chain", tmp_path / "key"), tmp_path, KEY, [])
    assert transport.public_tls
    assert transport.page_certificate("0.0.0.0:7701") == leaf


@pytest.mark.parametrize(
    ("addresses", "reach"),
    [
        (["127.0.0.1"], Reach.MACHINE),
        (["0.0.0.0"], Reach.MACHINE),
        (["::1"], Reach.MACHINE),
        (["169.254.1.1"], Reach.LINK),
        (["fe80::1%eth0"], Reach.LINK),
        (["192.168.178.20"], Reach.HOME),
        (["172.31.255.1"], Reach.HOME),
        (["172.32.0.1"], Reach.EVERYBODY),
        (["fd12::1"], Reach.HOME),
        (["100.64.0.1"], Reach.PROVIDER),
        (["100.128.0.1"], Reach.EVERYBODY),
        (["8.8.8.8"], Reach.EVERYBODY),
        (["2606:4700::1111"], Reach.EVERYBODY),
        (["::ffff:10.0.0.1"], Reach.HOME),
        (["192.168.1.2", "2606:4700::1111"], Reach.EVERYBODY),
        ([], Reach.NOBODY),
    ],
)
def test_the_kind_of_an_address(addresses: list[str], reach: Reach) -> None:
    assert classify(addresses) is reach


PROXIES = ip_network("10.1.0.0/16")


@pytest.mark.parametrize(
    ("host", "forwarded", "client"),
    [
        ("10.1.2.3", ["192.0.2.7"], "192.0.2.7"),
        ("10.1.2.3", ["198.51.100.1, 192.0.2.7"], "192.0.2.7"),  # the client wrote the first one
        ("10.1.2.3", ["198.51.100.1", "192.0.2.7"], "192.0.2.7"),
        ("10.1.2.3", ["192.0.2.7, 10.1.9.9"], "192.0.2.7"),  # through two proxies
        ("10.1.2.3", ["192.0.2.7:5000"], "192.0.2.7"),
        ("10.1.2.3", ["[2001:db8::7]:5000"], "2001:db8::7"),
        ("10.1.2.3", ["2001:db8::7"], "2001:db8::7"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["", "unknown"], "10.1.2.3"),
        ("10.1.2.3", ["192.0.2.7, nonsense"], "10.1.2.3"),
        ("10.1.2.3", ["192.0.2.7, [::1"], "10.1.2.3"),
        ("10.1.2.3", ["1,2,3," * 10_000 + "192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["192.0.2.7"], "127.0.0.1"),  # may connect, but is not the proxy
        ("192.0.2.1", ["192.0.2.7"], "192.0.2.1"),
    ],
)
def test_only_what_the_named_proxy_adds_is_the_clients_address(
    host: str, forwarded: list[str], client: str, tmp_path: Path
) -> None:
    trusting = Transport(TlsSettings(proxy=PROXIES, proxy_forwards=True), tmp_path, KEY, [])
    assert trusting.client_of(host, forwarded) == client
    for settings in (TlsSettings(proxy=PROXIES), TlsSettings(insecure=True)):
        assert Transport(settings, tmp_path, KEY, []).client_of(host, forwarded) == host
