"""The logins of the organizer: wrong secrets are counted, and a login ends by itself. Pure: `now` comes in, in seconds.

The right secret never waits, whoever said a wrong one before: otherwise anybody behind the organizer's address could
shut the organizer out. A secret has too many bits to be found by trying, so a count only tells a person to slow down.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict, deque

from thinwire_coordinator.hall.access.organizer_secret import OrganizerSecret

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
        """Whether this is the token of a login that has not ended."""
        return self._ends.get(_digest(token), now) > now

    def end(self, token: str) -> None:
        self._ends.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
