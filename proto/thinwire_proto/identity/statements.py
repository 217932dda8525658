"""The bytes that are signed.

Each begins with a name of its own, so that a signature for one purpose never fits another, and each part is preceded by
its length, so that no two statements have the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

CONTEXT = b"thinwire 1 "


def hello(nonce: bytes, challenge: bytes) -> bytes:
    """By the coordinator: it answers the node's nonce, and asks the challenge."""
    return _statement(b"hello", nonce, challenge)


def join(coordinator: bytes, challenge: bytes, token: bytes) -> bytes:
    """By a node: it joins the coordinator with this public key, answers the challenge, and presents the token."""
    return _statement(b"join", coordinator, challenge, token)


def examine(coordinator: bytes, challenge: bytes, token: bytes) -> bytes:
    """By a node: as `join`, but it asks for the contract and for its line alone, and does not join."""
    return _statement(b"examine", coordinator, challenge, token)


def contribution(name: bytes, samples: int) -> bytes:
    """By a node: a contribution, by its hash, which covers contract, term, round, node and body, and its samples."""
    return _statement(b"contribution", name, _number(samples))


def session_of(secret: str) -> bytes:
    """The name of a session in statements: the SHA-256 of its secret. So they fit no other session."""
    return hashlib.sha256(secret.encode()).digest()


def leave(session: bytes, trained_through: int | None) -> bytes:
    """By a node: it leaves, with this last position in its momentum."""
    return _statement(b"leave", session, b"" if trained_through is None else _number(trained_through))


def evaluated(session: bytes, step: int, name: str, start: int, count: int, spread: int, loss: float) -> bytes:
    """By a node: the held-out loss of one part, whose fields are those of `EvaluationPart`."""
    numbers = (_number(number) for number in (step, start, count, spread))
    return _statement(b"evaluated", session, name.encode(), *numbers, struct.pack(">d", loss))


def peer(contract: bytes, server: bytes, challenge: bytes) -> bytes:
    """By a node: it opens a line to the node with this public key, and answers its challenge."""
    return _statement(b"peer", contract, server, challenge)


def message(contract: bytes, source: bytes, target: bytes, header: bytes, body_hash: bytes) -> bytes:
    """By a node: a message to another node. source, target: node ids. header: in its canonical bytes, unsigned."""
    return _statement(b"message", contract, source, target, header, body_hash)


def beat(session: bytes, number: int, report: bytes) -> bytes:
    """By a node: its report in a beat. number: of the reports of this session. report: its bytes, unsigned."""
    return _statement(b"beat", session, _number(number), report)


def deposit(contract: bytes, iteration: int, head: bytes, body_hash: bytes) -> bytes:
    """By a node: its parameters after an iteration, and the head of its chain."""
    return _statement(b"deposit", contract, _number(iteration), head, body_hash)


def organizer(at: int) -> bytes:
    """By the coordinator's key, in the organizer's hands: they ask at this Unix time, in seconds."""
    return _statement(b"organizer", _number(at))


def follow(challenge: bytes) -> bytes:
    """By the coordinator's key, on the machine of a standby: it answers the challenge of the one that it follows."""
    return _statement(b"follow", challenge)


def term(contract: bytes, number: int) -> bytes:
    """By the coordinator's key: a promotion has raised the term of the run with this contract to this number."""
    return _statement(b"term", contract, _number(number))


def row(row_hash: bytes) -> bytes:
    """By the coordinator: a sealed row, and by its chain all rows before it."""
    return _statement(b"row", row_hash)


def certificate(contract: bytes, node: str, numbers: Sequence[int], row: bytes) -> bytes:
    """By the coordinator: what is counted of a node; the numbers and the row are those of `ContributionCertificate`."""
    return _statement(b"certificate", contract, node.encode(), *map(_number, numbers), row)


def authority(certificate: bytes) -> bytes:
    """By the coordinator: the certificate (DER) of the authority that issues its TLS certificates."""
    return _statement(b"authority", certificate)


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _statement(name: bytes, *parts: bytes) -> bytes:
    return b"".join([CONTEXT, *(len(part).to_bytes(4, "big") + part for part in (name, *parts))])
