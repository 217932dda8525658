"""A node trusts a certificate only if the coordinator's key stands behind it."""

from __future__ import annotations

import datetime
from datetime import timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from thinwire_proto.identity.authority import EXTENSION, PEER, Untrusted, check_certificate, vouch
from thinwire_proto.identity.certificates import Certificate, new_authority, new_leaf
from thinwire_proto.identity.keys import SecretKey

NOW = datetime.datetime(2026, 11, 22, tzinfo=timezone.utc)
KEY = SecretKey(bytes(range(32)))
AUTHORITY = new_authority(NOW)
LEAF = new_leaf(AUTHORITY, KEY, [], NOW)


def der(certificate: Certificate) -> bytes:
    return certificate.parsed.public_bytes(Encoding.DER)


def forged(extension: bytes, issuer: Certificate, name: str = "thinwire-coordinator") -> bytes:
    """A certificate with this extension, of another machine's making."""
    key = load_pem_private_key(issuer.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(
        issuer.parsed.subject,
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        ec.generate_private_key(ec.SECP256R1()).public_key(),
        7,
        NOW - timedelta(days=1),
        NOW + timedelta(days=1),
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    if extension:
        builder = builder.add_extension(x509.UnrecognizedExtension(EXTENSION, extension), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def test_the_coordinators_certificate_leads_to_its_authority() -> None:
    assert check_certificate(der(LEAF), KEY.public.fingerprint, NOW) == AUTHORITY.chain


def test_whoever_copies_the_extension_is_found_out() -> None:
    extension, other = vouch(KEY, der(AUTHORITY)).value, new_authority(NOW)
    with pytest.raises(Untrusted, match="in between: the coordinator's authority did not issue"):
        check_certificate(forged(extension, other), KEY.public.fingerprint, NOW)


def test_an_authority_that_the_coordinators_key_did_not_sign_is_refused() -> None:
    """Of somebody in between, who knows the coordinator's public key and its signature of another authority."""
    own, genuine = new_authority(NOW), vouch(KEY, der(AUTHORITY)).value[:96]
    for head in (genuine, KEY.public.data + bytes(64)):
        with pytest.raises(Untrusted, match="in between: the coordinator's key did not sign the authority"):
            check_certificate(forged(head + der(own), own), KEY.public.fingerprint, NOW)


def test_another_coordinator_is_refused() -> None:
    with pytest.raises(Untrusted, match="another coordinator than the invite names answered"):
        check_certificate(der(LEAF), SecretKey().public.fingerprint, NOW)


@pytest.mark.parametrize("name", ["bank.example", "\x1b[31mred", "x" * 60])
def test_a_certificate_of_something_else_is_named(name: str) -> None:
    with pytest.raises(Untrusted, match="not a thinwire coordinator's") as caught:
        check_certificate(forged(b"", new_authority(NOW), name), KEY.public.fingerprint, NOW)
    assert ascii(name) in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (NOW + timedelta(days=31), "has expired on 2026-12-22, and this machine's clock shows 2026-12-23"),
        (NOW - timedelta(days=2), "is valid only from 2026-11-21 on, and this machine's clock shows 2026-11-20"),
    ],
)
def test_a_wrong_clock_is_named(now: datetime.datetime, text: str) -> None:
    with pytest.raises(Untrusted, match=text):
        check_certificate(der(LEAF), KEY.public.fingerprint, now)


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 95, 96, 97, 300])
def test_a_short_extension_is_refused(cut: int) -> None:
    extension = vouch(KEY, der(AUTHORITY)).value[:cut]
    with pytest.raises(Untrusted):
        check_certificate(forged(extension, AUTHORITY), KEY.public.fingerprint, NOW)


def test_no_change_of_a_byte_passes_as_another_certificate() -> None:
    """A few bytes outside of what is signed have two encodings with one meaning, such as the length of a bit string."""
    whole = der(LEAF)
    signed = x509.load_der_x509_certificate(whole).tbs_certificate_bytes
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        try:
            check_certificate(changed, KEY.public.fingerprint, NOW)
        except Untrusted:
            continue
        assert x509.load_der_x509_certificate(changed).tbs_certificate_bytes == signed


def test_the_certificate_of_a_peer_leads_to_its_authority_and_is_no_coordinators() -> None:
    peer = new_leaf(AUTHORITY, KEY, [], NOW, PEER.server_name)
    assert check_certificate(der(peer), KEY.public.fingerprint, NOW, PEER) == AUTHORITY.chain
    with pytest.raises(Untrusted, match="of 'thinwire-peer', not of thinwire-coordinator"):
        check_certificate(der(peer), KEY.public.fingerprint, NOW)
    with pytest.raises(Untrusted, match="of 'thinwire-coordinator', not of thinwire-peer"):
        check_certificate(der(LEAF), KEY.public.fingerprint, NOW, PEER)
    with pytest.raises(Untrusted, match="another node than the coordinator named answered"):
        check_certificate(der(peer), SecretKey().public.fingerprint, NOW, PEER)
