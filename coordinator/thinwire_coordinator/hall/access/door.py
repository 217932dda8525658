"""The door of the swarm: proves identities by challenges, and asks whether a node may join.

Remembering each challenge until it is answered would let anybody fill the memory. So a challenge carries its own time
and a code of authentication, and only answered ones are remembered, each for as long as it would be valid.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from thinwire_proto.errors import LocalError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.limits import CHALLENGE_S

log = logging.getLogger("thinwire.coordinator")


class DoorReason(Enum):
    """Values are metric labels, and stand in the metadata `thinwire-reason` of a refusal."""

    NO_INVITE = "no_invite"
    """The coordinator does not know the node, and the node presents no token."""
    UNKNOWN_TOKEN = "unknown_token"
    EXPIRED = "expired"
    USED_UP = "used_up"
    REVOKED = "revoked"
    BANNED = "banned"
    STALE_CHALLENGE = "stale_challenge"
    """The challenge is not one that this process gave, or was answered already, or too late."""
    BAD_SIGNATURE = "bad_signature"
    """The node does not hold the secret key of the identity that it claims."""
    OTHER_LEDGER = "other_ledger"
    """The node has seen a row that this ledger does not have: the ledger is an older copy, or another lineage."""
    FULL = "full"
    RATE = "rate"
    """Too many calls: wait, and try again."""
    SLOW = "slow"
    """A message did not come in time."""
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    """A message is not one of this call."""
    ITERATION_BACK = "iteration_back"
    """A report names an earlier iteration than the node's last one."""
    TOO_OLD = "too_old"
    """The node's version cannot follow the amendments of the run."""
    OTHER_EXCHANGE = "other_exchange"
    """The run has no such call, because of its `exchange.kind`."""
    FAILED = "failed"
    """The coordinator could not answer: its disk fails, or this is a bug. Its log says why."""


MUST_WAIT = frozenset({DoorReason.BANNED, DoorReason.STALE_CHALLENGE, DoorReason.FULL, DoorReason.RATE})
"""Refusals that end by themselves. After any other, a new attempt would fail as well."""


@dataclass(frozen=True)
class Denied:
    """text: what was wrong and what to do, for the person at the other end."""

    reason: DoorReason
    text: str


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

    def would_admit(self, candidate: Candidate, now: float) -> Denied | None:
        """Say why `admit` would refuse a candidate, and change nothing. May block."""

    def joined(self, candidate: Candidate, now: float) -> None:
        """Record that an admitted candidate has joined: after `admit`, a run may still refuse it."""


NONCE_BYTES = 32


class Door:
    """key: the coordinator's. now: seconds on a clock that never goes back. run: runs a blocking call on a worker."""

    def __init__(
        self,
        key: SecretKey,
        admits: Admits,
        now: Callable[[], float],
        run: Callable[[Callable[[], Denied | None]], Awaitable[Denied | None]],
        randomness: random.Random,
    ) -> None:
        self.key = key
        self._admits = admits
        self._now = now
        self._run = run
        self._challenges = Challenges(randomness)

    def greet(self, nonce: bytes) -> tuple[bytes, bytes]:
        """A challenge, and the coordinator's signature of it and of the nonce."""
        challenge = self._challenges.give(self._now())
        return challenge, self.key.sign(statements.hello(nonce, challenge))

    def is_own_key(self, challenge: bytes, signature: bytes) -> bool:
        """Whether the caller has answered a challenge with the coordinator's own key, which a standby holds."""
        if not self.key.public.verifies(signature, statements.follow(challenge)):
            return False
        return self._challenges.take(challenge, self._now())

    async def check(self, candidate: Candidate, challenge: bytes, signature: bytes) -> Denied | None:
        """Check the proof of a joining node, and ask whether it may join."""
        statement = statements.join(self.key.public.data, challenge, candidate.token)
        return await self._check(candidate, challenge, signature, statement, self._admits.admit)

    async def examine(self, candidate: Candidate, challenge: bytes, signature: bytes) -> Denied | None:
        """Check the proof of a node that asks whether it could join. Enrols nobody, and uses no invite up."""
        statement = statements.examine(self.key.public.data, challenge, candidate.token)
        return await self._check(candidate, challenge, signature, statement, self._admits.would_admit)

    async def _check(
        self,
        candidate: Candidate,
        challenge: bytes,
        signature: bytes,
        statement: bytes,
        asked: Callable[[Candidate, float], Denied | None],
    ) -> Denied | None:
        if not candidate.public_key.verifies(signature, statement):
            return Denied(DoorReason.BAD_SIGNATURE, "the node did not prove that it holds the key of its identity")
        if not self._challenges.take(challenge, self._now()):  # after the proof: else anybody could use up the memory
            return Denied(DoorReason.STALE_CHALLENGE, "the challenge was answered too late, or twice; join again")
        return await self._run(lambda: asked(candidate, time.time()))

    async def joined(self, candidate: Candidate) -> None:
        """Record that a candidate which `check` let in has joined. A failure is logged: the node takes part anyway."""
        try:
            await self._run(lambda: self._admits.joined(candidate, time.time()))
        except LocalError as error:
            log.warning("the join of node %s is not recorded: %s", candidate.public_key.node_id[:8], error)
