"""The TLS certificate of a node that listens for its peers.

It is made when the node starts, and kept in memory: peers check the node's key in it, and nothing that lasts longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone

from thinwire_proto.identity.authority import PEER
from thinwire_proto.identity.certificates import LEAF_LASTS, RENEW_BEFORE, Certificate, new_authority, new_leaf
from thinwire_proto.identity.keys import SecretKey


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class PeerCertificate:
    """now: the time of day, in UTC."""

    def __init__(self, key: SecretKey, now: Callable[[], datetime] = utc_now) -> None:
        self._key = key
        self._now = now
        self._lock = threading.Lock()  # gRPC asks in threads of its own
        self._made_at = now()
        self._newest = _made(key, self._made_at)

    def current(self) -> Certificate:
        """The newest certificate. A new one is made when it is about to end, or if the clock was wrong before."""
        with self._lock:
            now = self._now()
            if not self._made_at <= now < self._made_at + LEAF_LASTS - RENEW_BEFORE:
                self._made_at, self._newest = now, _made(self._key, now)
            return self._newest


def _made(key: SecretKey, now: datetime) -> Certificate:
    return new_leaf(new_authority(now), key, [], now, PEER.server_name)
