"""The proof that opens a direct line. Pure: parcels in, parcels out.

The server has proved who it is by its certificate, which the other end checks first (`dialler`). Its first parcel has a
challenge. The other end signs it, with the contract and the server's key, so that the proof opens no other line.
"""

from __future__ import annotations

import secrets

from google.protobuf.message import DecodeError

from thinwire_proto.errors import PayloadError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX

CHALLENGE_BYTES = 32
PROOF_BYTES_MAX = 1 << 10
"""Of a message of an end that has not proved who it is."""
PARCEL_BYTES_MAX = PART_BYTES_MAX + (4 << 10)
"""A part of a body, and a header."""


def parse(data: bytes, bytes_max: int = PARCEL_BYTES_MAX) -> pb.Parcel:
    """Read a parcel. Raises PayloadError."""
    if len(data) > bytes_max:
        raise PayloadError(f"a parcel of {len(data)} bytes came; at most {bytes_max} may come here")
    try:
        return pb.Parcel.FromString(data)
    except DecodeError:
        raise PayloadError("what came is no parcel") from None


def challenge_parcel() -> pb.Parcel:
    """The first parcel of the server."""
    return pb.Parcel(challenge=secrets.token_bytes(CHALLENGE_BYTES))


def proof_parcel(key: SecretKey, contract_hash: bytes, server: PublicKey, challenge: pb.Parcel) -> pb.Parcel:
    """The answer to a challenge. Raises PayloadError if it is none."""
    if len(challenge.challenge) != CHALLENGE_BYTES:
        raise PayloadError(f"the peer begins without a challenge of {CHALLENGE_BYTES} bytes")
    signature = key.sign(statements.peer(contract_hash, server.data, challenge.challenge))
    return pb.Parcel(proof=pb.PeerProof(public_key=key.public.data, signature=signature))


def proved(contract_hash: bytes, server: PublicKey, challenge: pb.Parcel, answer: pb.Parcel) -> PublicKey:
    """The key of the other end. Raises PayloadError if it has not proved that it has one."""
    key, signature = PublicKey(answer.proof.public_key), answer.proof.signature
    if len(key.data) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        raise PayloadError("the first parcel of a line has a public key and a signature")
    if not key.verifies(signature, statements.peer(contract_hash, server.data, challenge.challenge)):
        raise PayloadError("the challenge is not signed by that key, for this node and this run")
    return key
