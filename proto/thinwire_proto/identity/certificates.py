"""Makes TLS authorities and the certificates that they issue, and decides when to renew them.

Nothing here reads a clock, a disk or a socket. `authority` says how the other end checks a certificate.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.authority import SERVER_NAME, vouch
from thinwire_proto.identity.keys import SecretKey

AUTHORITY_LASTS = timedelta(days=20 * 365)
LEAF_LASTS = timedelta(days=30)
RENEW_BEFORE = timedelta(days=10)
"""A certificate is renewed when it is valid for less than this, so that nobody ever sees one that is about to end."""
AUTHORITY_RENEW_BEFORE = timedelta(days=365)
BACKDATED = timedelta(days=1)
"""Certificates are valid from a day ago, for volunteers whose clock is behind."""

assert RENEW_BEFORE < LEAF_LASTS
assert LEAF_LASTS < AUTHORITY_RENEW_BEFORE, "a certificate must not outlive its authority"


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key. chain: PEM, the server's certificate first. key: PEM, not encrypted."""

    chain: bytes
    key: bytes = field(repr=False)

    @property
    def parsed(self) -> x509.Certificate:
        """The first certificate of the chain."""
        return x509.load_pem_x509_certificate(self.chain)


def new_authority(now: datetime) -> Certificate:
    """An authority (CA) for the certificates of one machine. now: in UTC, with a time zone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("thinwire authority")
    builder = _builder(key, now, AUTHORITY_LASTS).subject_name(name).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _signed(builder, key, key)


def new_leaf(
    authority: Certificate, identity: SecretKey, hosts: Sequence[str], now: datetime, name: str = SERVER_NAME
) -> Certificate:
    """A server certificate. hosts: names and IP addresses at which browsers reach the page, beside `name`."""
    issuer = authority.parsed
    issuer_key = load_pem_private_key(authority.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_alternative(host) for host in (name, *hosts)])
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = _builder(key, now, LEAF_LASTS).subject_name(_name(name)).issuer_name(issuer.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(authority_id, critical=False)
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(vouch(identity, issuer.public_bytes(Encoding.DER)), critical=False)
    return _signed(builder, key, issuer_key)


def why_renew_authority(authority: Certificate, now: datetime) -> str | None:
    """The reason to replace an authority; None if it is good."""
    return _time_to_renew(authority.parsed, now, AUTHORITY_RENEW_BEFORE)


def why_renew_leaf(
    leaf: Certificate, authority: Certificate, identity: SecretKey, hosts: Sequence[str], now: datetime
) -> str | None:
    """The reason to replace a certificate; None if it is good."""
    found, issuer = leaf.parsed, authority.parsed
    if (due := _time_to_renew(found, now, RENEW_BEFORE)) is not None:
        return due
    if vouch(identity, issuer.public_bytes(Encoding.DER)) not in _values(found):  # ed25519 signs deterministically
        return "the coordinator's key or its authority is another one"
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if list(names) != [_alternative(host) for host in (SERVER_NAME, *hosts)]:
        return "the addresses of the coordinator have changed"
    return None


def parse_certificate(chain: bytes, key: bytes) -> Certificate:
    """A certificate and its key from PEM. Raises ConfigError, whose text goes behind the names of the files."""
    try:
        found = x509.load_pem_x509_certificates(chain)[0]
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError("the certificate is not PEM; give the full chain, the server's own first") from None
    try:
        secret = load_pem_private_key(key, None)
    except TypeError:
        raise ConfigError("the key is encrypted; remove its password: openssl pkey -in KEY -out PLAIN") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError("the key is not a private key in PEM") from None
    public = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if secret.public_key().public_bytes(*public) != found.public_key().public_bytes(*public):
        raise ConfigError("the key does not belong to the certificate (the first in its file)")
    return Certificate(chain, key)


def check_not_expired(certificate: Certificate, now: datetime) -> None:
    """Raise ConfigError if it has expired."""
    if now > (ends := certificate.parsed.not_valid_after_utc):
        raise ConfigError(f"the certificate has expired on {ends:%Y-%m-%d}; renew it")


def _values(certificate: x509.Certificate) -> list[x509.ExtensionType]:
    return [extension.value for extension in certificate.extensions]


def _time_to_renew(certificate: x509.Certificate, now: datetime, renew_before: timedelta) -> str | None:
    if now > certificate.not_valid_after_utc - renew_before:
        return f"it expires on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"it is valid only from {certificate.not_valid_before_utc:%Y-%m-%d} on: the machine's clock was wrong"
    return None


def _builder(key: ec.EllipticCurvePrivateKey, now: datetime, lasts: timedelta) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number()).public_key(key.public_key())
    return builder.not_valid_before(now - BACKDATED).not_valid_after(now + lasts)


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> Certificate:
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(builder.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM), secret)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]").partition("%")[0]))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(
            f"{host!r} is no name of a host that a certificate can have; write it in ASCII, as in xn--…"
        ) from None
