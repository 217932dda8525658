"""The organizer: a secret in a file, the logins with it, and the proof with which commands ask for the status.

It logs in to the panel of the page. The file is made at the first start; to change the secret, delete it and start the
coordinator again, which ends all logins too.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import shlex
from collections import OrderedDict, deque
from pathlib import Path

from thinwire_common.files import replace_synced
from thinwire_proto.errors import MEND_DISK, ConfigError, LocalError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.identity.private_files import others_can_read
from thinwire_proto.limits import STATUS_PROOF_S

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
            replace_synced(path, f"{secrets.token_urlsafe(SECRET_BYTES)}\n".encode(), private=True)
        if others_can_read(path):
            raise ConfigError(f"{path}: others can read it; run: chmod 600 {shlex.quote(str(path))}")
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise LocalError(f"{path}: {error}; {MEND_DISK}") from None
    if not LENGTH_MIN <= len(secret) <= LENGTH_MAX:
        text = f"{path}: a secret has {LENGTH_MIN} to {LENGTH_MAX} letters; delete the file, and a new one is made"
        raise ConfigError(text)
    return OrganizerSecret(secret)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


# Only the organizer's commands can read that key. No secret travels: another program on the coordinator's port learns
# only a proof that expires after STATUS_PROOF_S, and that reads the status and no more. Pure: `now` is Unix time in
# seconds.

PROOF = re.compile(r"([0-9]{1,12}):([0-9a-f]{128})")


def organizer_proof(key: SecretKey, now: float) -> str:
    """The proof, as it stands in the metadata `thinwire-organizer`."""
    return f"{round(now)}:{key.sign(statements.organizer(round(now))).hex()}"


def proves_organizer(text: str, key: PublicKey, now: float) -> bool:
    """Whether this proof was made with the secret of `key`, at most STATUS_PROOF_S ago."""
    found = PROOF.fullmatch(text)
    if found is None or abs(now - int(found[1])) > STATUS_PROOF_S:
        return False
    return key.verifies(bytes.fromhex(found[2]), statements.organizer(int(found[1])))


# The right secret never waits, whoever said a wrong one before: otherwise anybody behind the organizer's address could
# shut the organizer out. A secret has too many bits to be found by trying, so a count only tells a person to slow down.

LOGIN_S = 12 * 3600.0
"""A login ends so long after it was made."""
LOGINS_MAX = 32
ATTEMPTS_MAX = 10
ATTEMPTS_WITHIN_S = 60.0
"""An address that said ATTEMPTS_MAX wrong secrets within this time is told to wait before the next one."""
ADDRESSES_MAX = 1024
TOKEN_BYTES = 32


class Logins:
    """The logins that have not ended. A token is kept as its SHA-256, like all secrets of others."""

    def __init__(self, secret: OrganizerSecret) -> None:
        self._secret = secret
        self._ends: OrderedDict[bytes, float] = OrderedDict()
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str, now: float) -> float:
        """The seconds that an address that says a wrong secret is told to wait."""
        failed = self._failed.get(address)
        if failed is None or len(failed) < ATTEMPTS_MAX:
            return 0.0
        return max(0.0, failed[0] + ATTEMPTS_WITHIN_S - now)

    def failed(self, address: str, now: float) -> None:
        """Count a wrong secret of an address."""
        self._failed.setdefault(address, deque(maxlen=ATTEMPTS_MAX)).append(now)
        self._failed.move_to_end(address)
        if len(self._failed) > ADDRESSES_MAX:
            self._failed.popitem(last=False)

    def begin(self, said: str, now: float) -> str | None:
        """The token of a new login; None if the secret is wrong."""
        if not self._secret.is_said_by(said):
            return None
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._ends[_digest(token)] = now + LOGIN_S
        if len(self._ends) > LOGINS_MAX:
            self._ends.popitem(last=False)
        return token

    def holds(self, token: str, now: float) -> bool:
        return self._ends.get(_digest(token), now) > now

    def end(self, token: str) -> None:
        self._ends.pop(_digest(token), None)
