"""Challenges: random bytes that a joining node signs, to prove that it holds its key now.

Remembering each challenge until it is answered would let anybody fill the memory. So a challenge carries its own time
and a code of authentication, and only answered ones are remembered, each for as long as it would be valid.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections import OrderedDict

from thinwire_proto.limits import CHALLENGE_S

ANSWERED_MAX = 1 << 14
"""Answered challenges that are remembered. More answers within CHALLENGE_S are refused."""
RANDOM_BYTES = 16
TIME_BYTES = 8
CODE_BYTES = 16


class Challenges:
    """Gives challenges out, and takes each back once. `now` is in seconds on any clock that never goes back."""

    def __init__(self, randomness: random.Random) -> None:
        self._random = randomness
        self._secret = randomness.randbytes(32)
        self._answered: OrderedDict[bytes, float] = OrderedDict()  # with the time of the answer

    def give(self, now: float) -> bytes:
        content = self._random.randbytes(RANDOM_BYTES) + round(now * 1e6).to_bytes(TIME_BYTES, "big")
        return content + self._code(content)

    def take(self, challenge: bytes, now: float) -> bool:
        """Whether this is a challenge of this object that is not too old and was not taken before."""
        content, code = challenge[:-CODE_BYTES], challenge[-CODE_BYTES:]
        if not hmac.compare_digest(code, self._code(content)):
            return False
        while self._answered and now - next(iter(self._answered.values())) > CHALLENGE_S:
            self._answered.popitem(last=False)
        given = int.from_bytes(content[RANDOM_BYTES:], "big") / 1e6
        if now - given > CHALLENGE_S or challenge in self._answered or len(self._answered) >= ANSWERED_MAX:
            return False
        self._answered[challenge] = now
        return True

    def _code(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, hashlib.sha256)[:CODE_BYTES]
