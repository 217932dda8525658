"""The door of the swarm: proves identities by challenges, and asks whether a node may join.

Remembering each challenge until it is answered would let anybody fill the memory. So a challenge carries its own time
and a code of authentication, and only answered ones are remembered, each for as long as it would be valid.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from thinwire_coordinator.hall.access.bans import Ban
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey
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


@dataclass(frozen=True)
class Candidate:
    """An identity that wants to join, and has proved to be what it claims.

    token: of its invite; empty if it has none. name: as it came, not cleaned. address: the host that it connects from.
    """

    public_key: PublicKey
    token: bytes = field(repr=False)
    name: str
    address: str


class Admits(Protocol):
    def admit(self, candidate: Candidate, now: float) -> Denied | None:
        """Enrol a candidate, or find it among the enrolled ones; or say why not. A worker calls this, so it may block.

        now: Unix time in seconds.
        """


class Bans(Protocol):
    def holding(self, now: float) -> Mapping[str, Ban]:
        """The bans that hold, by node id. A worker calls this. now: Unix time in seconds."""

    def pardoned_since(self, number: int) -> tuple[int, list[str]]:
        """The nodes that the organizer has pardoned after the decision with this number, and the newest number. A
        worker calls this."""


NONCE_BYTES = 32


@dataclass(frozen=True)
class Greeting:
    """The answer to Hello; see service.proto."""

    public_key: bytes
    challenge: bytes
    signature: bytes


class Door:
    """key: the coordinator's. now: seconds on a clock that never goes back. run: runs a blocking call on a worker."""

    def __init__(
        self,
        key: SecretKey,
        admits: Admits,
        now: Callable[[], float],
        run: Callable[[Callable[[], Denied | None]], Awaitable[Denied | None]],
        randomness: random.Random,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.key = key
        self._admits = admits
        self._now = now
        self._run = run
        self._wall_clock = wall_clock
        self._challenges = Challenges(randomness)

    def greet(self, nonce: bytes) -> Greeting:
        challenge = self._challenges.give(self._now())
        signature = self.key.sign(statements.hello(nonce, challenge))
        return Greeting(self.key.public.data, challenge, signature)

    async def check(self, candidate: Candidate, challenge: bytes, signature: bytes) -> Denied | None:
        """Check the proof of a joining node, and ask whether it may join."""
        statement = statements.join(self.key.public.data, challenge, candidate.token)
        if not candidate.public_key.verifies(signature, statement):
            return Denied(DoorReason.BAD_SIGNATURE, "the node did not prove that it holds the key of its identity")
        if not self._challenges.take(challenge, self._now()):  # after the proof: else anybody could use up the memory
            return Denied(DoorReason.STALE_CHALLENGE, "the challenge was answered too late, or twice; join again")
        return await self._run(lambda: self._admits.admit(candidate, self._wall_clock()))
