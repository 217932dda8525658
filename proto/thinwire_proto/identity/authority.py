"""Checks that a TLS certificate belongs to a key: the coordinator's, or that of a node which listens for its peers.

The problem: an invite has room for one fingerprint, that of the coordinator's ed25519 key, but browsers, Prometheus and
gRPC speak TLS with ECDSA certificates, which expire. To put the fingerprint of a certificate into the invite would end
all invites whenever the certificate is renewed.

The answer: a TLS authority (CA) of the coordinator issues short-lived certificates, and each certificate carries, in a
private X.509 extension,

    the coordinator's public key (32 bytes) | its signature over the authority (64 bytes) | the authority (DER)

A node that listens has an authority and a certificate of the same kind, under another name.

A node reads it from the certificate that answers at the invite's address, checks it with `check_certificate`, and takes
the authority as the only root. Whoever copies the extension has no certificate that this authority issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from thinwire_proto.errors import RemoteError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SecretKey

SERVER_NAME = "thinwire-coordinator"
"""The name in each certificate that a coordinator's authority issues, wherever the coordinator listens."""
EXTENSION = x509.ObjectIdentifier("1.2.840.113556.1.8000.2554.42319.6010.16561.1405.58435.11866075.10253561")
"""A UUID in pieces of at most 24 bits, below the arc for UUIDs in pieces, so nobody has to register it.

2.25, the usual arc for UUIDs, takes one as a single number of 128 bits. RFC 5280 (appendix B) asks readers for 28 bits,
and Go, in which Prometheus is written, refuses a certificate with more than 31."""
MALFORMED = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""The errors that the package cryptography raises for a certificate that it cannot read."""
_HEAD_BYTES = KEY_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True)
class Party:
    """The machines of one kind, and the words for them in refusals.

    server_name: in each certificate of such a machine. noun: its name in a sentence. unlike: another one answered.
    ask: what to do then. mend: what to do if its certificate has expired."""

    server_name: str
    noun: str
    unlike: str
    ask: str
    mend: str


COORDINATOR = Party(
    SERVER_NAME,
    "coordinator",
    "another coordinator than the invite names answered, or somebody is in between",
    "ask the organizer for a new invite",
    "tell the organizer, whose coordinator renews certificates by itself",
)
PEER = Party(
    "thinwire-peer",
    "node",
    "another node than the coordinator named answered, or somebody is in between",
    "the address may be another machine's by now",
    "the peer's clock is wrong",
)
"""A node that listens for its peers."""


class Untrusted(RemoteError):
    """The certificate does not belong to the expected key. The text says why, and what to do."""


def vouch(identity: SecretKey, authority: bytes) -> x509.UnrecognizedExtension:
    """The extension for all certificates of an authority. authority: its certificate (DER)."""
    signature = identity.sign(statements.authority(authority))
    return x509.UnrecognizedExtension(EXTENSION, identity.public.data + signature + authority)


def check_certificate(
    certificate: bytes, fingerprint: bytes | None, now: datetime, party: Party = COORDINATOR
) -> bytes:
    """Check the certificate (DER) that a server presented, and return its authority (PEM).

    fingerprint: of the key that is expected; None: any. now: in UTC, with a time zone. Raises Untrusted.
    """
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        data, names = _extension(leaf), _names(leaf)
    except MALFORMED:
        raise Untrusted("the TLS certificate there cannot be read: something else than thinwire answered") from None
    whose = ascii(names[0][:64]) if names else "a nameless machine"  # a stranger wrote it
    if data is None:
        raise Untrusted(
            f"the TLS certificate there, of {whose}, is not a thinwire {party.noun}'s; check the address, and "
            "whether a proxy, a login page of the network, or a virus scanner answers in its place"
        )
    key = PublicKey(data[:KEY_BYTES])
    signature, authority = data[KEY_BYTES:_HEAD_BYTES], data[_HEAD_BYTES:]
    if fingerprint is not None and key.fingerprint != fingerprint:
        raise Untrusted(f"{party.unlike}; {party.ask}")
    if not key.verifies(signature, statements.authority(authority)):
        raise Untrusted(f"{party.unlike}: the {party.noun}'s key did not sign the authority of the certificate there")
    try:
        root = x509.load_der_x509_certificate(authority)
        leaf.verify_directly_issued_by(root)
    except (*MALFORMED, TypeError, InvalidSignature):
        text = f"{party.unlike}: the {party.noun}'s authority did not issue the certificate there"
        raise Untrusted(text) from None
    if party.server_name not in names:
        raise Untrusted(f"the certificate there is of {whose}, not of {party.server_name}: it serves another purpose")
    for found in (leaf, root):
        _check_time(found, now, party)
    return root.public_bytes(Encoding.PEM)


def _check_time(certificate: x509.Certificate, now: datetime, party: Party) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if begins <= now <= ends:
        return
    what = f"has expired on {ends:%Y-%m-%d}" if now > ends else f"is valid only from {begins:%Y-%m-%d} on"
    raise Untrusted(
        f"the {party.noun}'s certificate {what}, and this machine's clock shows {now:%Y-%m-%d %H:%M} UTC: correct the "
        f"clock; if it is right, {party.mend}"
    )


def _extension(certificate: x509.Certificate) -> bytes | None:
    try:
        found = certificate.extensions.get_extension_for_oid(EXTENSION).value
    except x509.ExtensionNotFound:
        return None
    assert isinstance(found, x509.UnrecognizedExtension)
    return found.value


def _names(certificate: x509.Certificate) -> list[str]:
    """The DNS names of a certificate; its common names, if it has none."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return found.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        return [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
