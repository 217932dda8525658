"""Ed25519 keys of coordinators and nodes (RFC 8032, by the package cryptography)."""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.private_files import others_can_read, publish_new

KEY_FILE = "identity.key"
"""The name of the file in a state directory, of a coordinator or a node."""
KEY_BYTES = 32
"""Size of a secret key, and of a public key."""
SIGNATURE_BYTES = 64
SMALL_ORDER = frozenset(
    bytes.fromhex(digits)
    for digits in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
)
"""The encodings of points of small order, with the sign bit cleared (libsodium's `ge25519_has_small_order`).

As public keys, they have signatures that anybody can make, and that fit many statements or all. So they prove nothing.
"""
NODE_ID_DIGITS = 32
"""A node's id: 128 bits in hexadecimal."""


@dataclass(frozen=True)
class PublicKey:
    """A public key. data: its 32 bytes. Not every 32 bytes are a key of somebody; `verifies` is then always False."""

    data: bytes

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the key, 32 bytes. An invite names its coordinator by it."""
        return hashlib.sha256(self.data).digest()

    @property
    def node_id(self) -> str:
        """The id of the node with this key: the first half of the fingerprint in hexadecimal, 32 digits."""
        return self.fingerprint.hex()[:NODE_ID_DIGITS]

    def verifies(self, signature: bytes, statement: bytes) -> bool:
        """Whether the owner of this key signed the statement (see `statements`)."""
        if self._has_small_order:
            return False
        try:
            self._key.verify(signature, statement)
        except (InvalidSignature, ValueError):
            return False
        return True

    @cached_property
    def _has_small_order(self) -> bool:
        return self.data[:-1] + bytes([self.data[-1] & 0x7F]) in SMALL_ORDER if self.data else False

    @cached_property
    def _key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.data)


class SecretKey:
    """A secret key. data: 32 bytes; without it, a new key is drawn. Raises ValueError if the length differs."""

    def __init__(self, data: bytes | None = None) -> None:
        self._key = Ed25519PrivateKey.generate() if data is None else Ed25519PrivateKey.from_private_bytes(data)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, statement: bytes) -> bytes:
        """The signature of a statement (see `statements`), 64 bytes."""
        return self._key.sign(statement)

    @property
    def data(self) -> bytes:
        """The secret, 32 bytes."""
        return self._key.private_bytes_raw()


def open_key(path: Path, without_copy: str = "") -> SecretKey:
    """Read the key in a file, or create one that only the file's owner can read. The file is synced on return.

    without_copy: what to do if the file is damaged and there is no copy. Raises ConfigError if the file holds something
    else, or if other users of the machine can read it.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the key: {error.strerror}; it must be readable by this user") from None
    if others_can_read(path):
        command = shlex.join(["chmod", "600", str(path)])
        raise ConfigError(f"{path}: other users can read this key; if nobody has, run: {command}")
    if len(data) != KEY_BYTES:
        text = f"this is not a key of {KEY_BYTES} bytes; restore it from a copy"
        raise ConfigError(f"{path}: {text}; without one, {without_copy}" if without_copy else f"{path}: {text}")
    return SecretKey(data)


def _create(path: Path) -> SecretKey:
    key, temporary = SecretKey(), path.with_name(f"{path.name}.{os.getpid()}.part")
    temporary.unlink(missing_ok=True)  # of a process that was killed, or a link that somebody else put there
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key.data)
        file.flush()
        os.fsync(file.fileno())
    try:
        publish_new(temporary, path)  # fails if another process was faster, so that both use its key
    except FileExistsError:
        return open_key(path)
    return key
