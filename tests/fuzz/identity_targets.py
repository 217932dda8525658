"""Targets: proofs of who the coordinator is: certificates, invites, enrolments that nodes keep, answers to Hello."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from google.protobuf.message import DecodeError

from fuzz.messages import damage_of
from fuzz.mutations import NUMBERS, TEXTS, damage_bytes, damage_json
from fuzz.target import Target
from thinwire_node.exchange.coordinator.dial import check_coordinator
from thinwire_node.exchange.port import Refused
from thinwire_node.storage import enrolment
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity import statements
from thinwire_proto.identity.authority import EXTENSION, SERVER_NAME, Untrusted, check_certificate
from thinwire_proto.identity.certificates import new_authority, new_leaf
from thinwire_proto.identity.invite import CHECKSUM_BYTES, PREFIX, TOKEN_BYTES, Invite, bare, parse_invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb

NOW = datetime(2026, 11, 22, tzinfo=timezone.utc)
KEY = SecretKey(bytes(range(32)))
NONCE = bytes(range(32))
INVITE = Invite("192.0.2.7:7700", KEY.public.fingerprint, bytes(TOKEN_BYTES))


def identity_targets(scratch: Path) -> list[Target]:
    leaf = new_leaf(AUTHORITY, KEY, ["192.0.2.7", "coordinator.example.org"], NOW).parsed.public_bytes(Encoding.DER)
    kept = json.dumps({"address": INVITE.address, "invite": str(INVITE)}).encode()
    signature = KEY.sign(statements.hello(NONCE, bytes(40)))
    hello = pb.HelloReply(public_key=KEY.public.data, challenge=bytes(40), signature=signature).SerializeToString()
    return [
        Target("certificate", _certificate, [leaf], damage_certificate, _is_authority, (Untrusted,)),
        Target("invite", _invite, _invites(), damage_invite, refusals=(ConfigError,)),
        Target("enrolment", _enrolment(scratch), [kept], damage_enrolment, refusals=(ConfigError,)),
        Target("hello reply", _hello, [hello], damage_of(pb.HelloReply), refusals=(Refused, DecodeError)),
    ]


AUTHORITY = new_authority(NOW)


def _certificate(data: bytes) -> bytes:
    return check_certificate(data, KEY.public.fingerprint, NOW)


def _is_authority(found: Any) -> None:
    x509.load_pem_x509_certificate(found)


def damage_certificate(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change bytes; or issue a certificate rightly signed, with a damaged extension, names or dates."""
    if rng.random() < 0.3:
        return damage_bytes(rng, data, others)
    authority = AUTHORITY.parsed.public_bytes(Encoding.DER)
    if rng.random() < 0.5:
        authority = damage_bytes(rng, authority, [authority, data])
    extension = KEY.public.data + KEY.sign(statements.authority(authority)) + authority
    if rng.random() < 0.3:
        extension = damage_bytes(rng, extension, [extension])
    try:
        return _issued(rng, extension)
    except (ValueError, TypeError, OverflowError):
        return damage_bytes(rng, data, others)


def _issued(rng: Random, extension: bytes) -> bytes:
    """A certificate of the authority. Raises ValueError for a name or a date that none can have."""
    issuer = load_pem_private_key(AUTHORITY.key, None)
    assert isinstance(issuer, ec.EllipticCurvePrivateKey)
    names = [SERVER_NAME] * rng.choice((0, 1, 1, 1, 300)) + rng.sample(TEXTS, rng.choice((0, 0, 1, 2)))
    begins = NOW + timedelta(days=rng.choice((-1, -1, -1, 1, -20_000)))
    builder = x509.CertificateBuilder(
        AUTHORITY.parsed.subject,
        x509.Name([]),
        ec.derive_private_key(7, ec.SECP256R1()).public_key(),
        rng.choice((1, 1 << 158)),
        begins,
        begins + timedelta(days=rng.choice((2, 30_000))),
    )
    if names or rng.random() < 0.5:
        alternatives = [x509.DNSName(name) for name in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=rng.random() < 0.5)
    builder = builder.add_extension(x509.UnrecognizedExtension(EXTENSION, extension), critical=rng.random() < 0.5)
    found = builder.sign(issuer, hashes.SHA256(), ecdsa_deterministic=True)
    return found.public_bytes(Encoding.DER)


def _invite(data: bytes) -> None:
    text = data.decode("utf-8", errors="surrogateescape")
    assert str(parse_invite(text)) == bare(text), "it changes when written and read again"


def _invites() -> list[bytes]:
    addresses = ("192.0.2.7:7700", "swarm.example.org:443", "[2001:db8::1]:1")
    made = [Invite(one, bytes(32), bytes(TOKEN_BYTES), public_tls=one.endswith("443")) for one in addresses]
    return [str(one).encode() for one in made]


def damage_invite(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change the letters, or what they mean, with a checksum that is right."""
    body = data.removeprefix(PREFIX.encode())
    try:
        content = base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4))[:-CHECKSUM_BYTES]
    except ValueError:
        content = b""
    if not content or rng.random() < 0.4:
        return damage_bytes(rng, data, others)
    content = damage_bytes(rng, content, [content])
    content += hashlib.sha256(content).digest()[:CHECKSUM_BYTES]
    return PREFIX.encode() + base64.urlsafe_b64encode(content).rstrip(b"=")


def _enrolment(scratch: Path) -> Any:
    """Read the enrolment of a state directory, as a start without an invite does."""

    def read(data: bytes) -> object:
        (scratch / enrolment.FILE).write_bytes(data)
        return enrolment.choose(scratch, None)

    return read


def damage_enrolment(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change the document, or the invite in it."""
    if rng.random() < 0.5:
        return damage_json(rng, data, others)
    invite = damage_invite(rng, str(INVITE).encode(), [data])
    return json.dumps({"invite": invite.decode("latin-1"), "more": rng.choice(NUMBERS)}).encode()


def _hello(data: bytes) -> None:
    check_coordinator(INVITE, NONCE, pb.HelloReply.FromString(data))
