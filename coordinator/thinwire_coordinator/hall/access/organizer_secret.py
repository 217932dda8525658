"""The organizer's secret: a file that only the organizer can read. A client with the secret acts as the organizer.

It logs in to the panel of the page. The file is made at the first start; to change the secret, delete it and start the
coordinator again, which ends all logins too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import shlex
from pathlib import Path

from thinwire_proto.errors import MEND_DISK, ConfigError, LocalError
from thinwire_proto.identity.private_files import others_can_read

FILE = "organizer.secret"
SECRET_BYTES = 24
"""Random bytes of a new secret: 192 bits, which nobody guesses, however fast they may try."""
LENGTH_MIN, LENGTH_MAX = 16, 256


class OrganizerSecret:
    """Compares what somebody says with the secret, in a time that does not depend on it."""

    def __init__(self, secret: str) -> None:
        self._digest = _digest(secret)

    def is_said_by(self, said: str) -> bool:
        return hmac.compare_digest(_digest(said), self._digest)


def open_organizer_secret(folder: Path) -> OrganizerSecret:
    """The secret of a state directory; made if there is none. Raises ConfigError or LocalError."""
    path = folder / FILE
    try:
        if not path.exists():
            _write(path, secrets.token_urlsafe(SECRET_BYTES))
        if others_can_read(path):
            raise ConfigError(f"{path}: others can read it; run: chmod 600 {shlex.quote(str(path))}")
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise LocalError(f"{path}: {error}; {MEND_DISK}") from None
    if not LENGTH_MIN <= len(secret) <= LENGTH_MAX:
        text = f"{path}: a secret has {LENGTH_MIN} to {LENGTH_MAX} letters; delete the file, and a new one is made"
        raise ConfigError(text)
    return OrganizerSecret(secret)


def _write(path: Path, secret: str) -> None:
    passing = path.with_name(f"{FILE}.part")
    passing.unlink(missing_ok=True)
    with os.fdopen(os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    passing.replace(path)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
