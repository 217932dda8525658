"""The bytes that are signed.

Each begins with a name of its own, so that a signature for one purpose never fits another, and each part is preceded by
its length, so that no two statements have the same bytes.
"""

from __future__ import annotations

CONTEXT = b"thinwire 1 "


def hello(nonce: bytes, challenge: bytes) -> bytes:
    """By the coordinator: it answers the node's nonce, and asks the challenge."""
    return _statement(b"hello", nonce, challenge)


def join(coordinator: bytes, challenge: bytes, token: bytes) -> bytes:
    """By a node: it joins the coordinator with this public key, answers the challenge, and presents the token."""
    return _statement(b"join", coordinator, challenge, token)


def contribution(name: bytes, samples: int) -> bytes:
    """By a node: a contribution, by its hash, which covers contract, term, round, node and body, and its samples."""
    return _statement(b"contribution", name, samples.to_bytes(8, "big"))


def row(row_hash: bytes) -> bytes:
    """By the coordinator: a sealed row, and by its chain all rows before it."""
    return _statement(b"row", row_hash)


def authority(certificate: bytes) -> bytes:
    """By the coordinator: the certificate (DER) of the authority that issues its TLS certificates."""
    return _statement(b"authority", certificate)


def _statement(name: bytes, *parts: bytes) -> bytes:
    return b"".join([CONTEXT, *(len(part).to_bytes(4, "big") + part for part in (name, *parts))])
