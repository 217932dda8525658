"""The door of the swarm: proves the coordinator's identity, checks a node's, and asks whether it may join."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from thinwire_coordinator.hall.access.challenges import Challenges
from thinwire_coordinator.hall.access.port import Admits, Candidate
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey

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
