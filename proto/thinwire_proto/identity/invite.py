"""The invite: one string that holds all that a volunteer needs to take part in a run.

    twi1_BASE64URL      of: flags, fingerprint, token, address, and the first 4 bytes of the SHA-256 of these

The address is text, `HOST:PORT`. The checksum finds a string that was cut off or mistyped before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from thinwire_proto.errors import ConfigError

PREFIX = "twi1_"
FINGERPRINT_BYTES = 32
TOKEN_BYTES = 16
CHECKSUM_BYTES = 4
INVITE_LENGTH_MAX = 512
"""In characters. An address has at most 253 for the host, and 6 for the port."""
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
BREAKS = re.compile(r"[\s\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""White space, and what mails, chats and editors put into long text unseen. None of it belongs to an invite."""
AROUND = "`\"'<>()[]*.,;:!\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a"
"""What people and their programs put around an invite: quotes, brackets, and the end of a sentence."""
_PUBLIC_TLS = 1
_HEAD_BYTES = 1 + FINGERPRINT_BYTES + TOKEN_BYTES


@dataclass(frozen=True)
class Invite:
    """address: HOST:PORT. fingerprint: SHA-256 of the coordinator's public key. token: the right to enrol.

    public_tls: the TLS certificate at the address is not the coordinator's own but one that browsers accept: the
    organizer's, or that of a proxy. Then its name is checked, instead of the authority that the coordinator signed.
    """

    address: str
    fingerprint: bytes
    token: bytes = field(repr=False)
    public_tls: bool = False

    def __str__(self) -> str:
        data = bytes([self.public_tls * _PUBLIC_TLS]) + self.fingerprint + self.token + self.address.encode()
        return _encoded(data + _checksum(data))


def bare(text: str) -> str:
    """A given invite without what does not belong to it."""
    return BREAKS.sub("", text).strip(AROUND)


def parse_invite(text: str) -> Invite:
    """Read an invite, also if it was broken into lines on its way, or put in quotes. Raises ConfigError."""
    text = bare(text)
    if not text.startswith(PREFIX):
        raise ConfigError(f"this is not an invite: it does not begin with {PREFIX}; ask the organizer for one")
    body = text.removeprefix(PREFIX)
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        if _encoded(data) != text:  # the last letter has bits that mean nothing
            data = b""
    except (ValueError, binascii.Error):
        data = b""
    content, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if len(text) > INVITE_LENGTH_MAX or len(content) <= _HEAD_BYTES or checksum != _checksum(content):
        raise ConfigError("this invite is incomplete or mistyped: copy it again, all of it")
    flags, address = content[0], content[_HEAD_BYTES:].decode("ascii", errors="replace")
    if flags & ~_PUBLIC_TLS:
        raise ConfigError("this invite is for a newer thinwire: update thinwire")
    if not (found := ADDRESS.fullmatch(address)) or not 0 < int(found[2]) < 1 << 16:
        raise ConfigError("this invite has no valid address: ask the organizer for a new one")
    fingerprint, token = content[1 : 1 + FINGERPRINT_BYTES], content[1 + FINGERPRINT_BYTES : _HEAD_BYTES]
    return Invite(address, fingerprint, token, public_tls=bool(flags & _PUBLIC_TLS))


def _encoded(data: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:CHECKSUM_BYTES]


FILE_MARK = "@"
FILE_CHARACTERS_MAX = 2 * INVITE_LENGTH_MAX
"""Read of a file with an invite, which may be broken into lines."""
UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Beginnings of a file that `echo INVITE > FILE` writes in the PowerShell of Windows."""


def parse_given_invite(given: str) -> Invite:
    """Read an invite, or @FILE with one: all users of a machine see its programs' arguments. Raises ConfigError."""
    if not given.strip().startswith(FILE_MARK):
        return parse_invite(given)
    path = Path(given.strip().removeprefix(FILE_MARK))
    try:
        with path.open("rb") as data:
            encoding = "utf-16" if data.peek(2)[:2] in UTF_16_MARKS else "utf-8"
            with io.TextIOWrapper(data, encoding) as file:
                text = bare(file.read(FILE_CHARACTERS_MAX))
    except (OSError, ValueError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{FILE_MARK}{path}: cannot read the invite: {reason}") from None
    if not text.startswith(PREFIX):
        raise ConfigError(f"{FILE_MARK}{path}: there is no invite in this file; it begins with {PREFIX}")
    return parse_invite(text)
